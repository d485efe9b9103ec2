"""One request as vLLM takes it."""

from typing import Any

from pipeline.errors import BadRequest
from pipeline.messages import Request
from workers.engine import EngineRequest


def token_ids(tokenizer: Any, request: EngineRequest) -> list[int]:
    """The prompt as the model reads it. Raises BadRequest for a chat without a template."""
    messages = request.request.messages
    if messages is None:
        ids = tokenizer.encode(request.prompt)
    elif not getattr(tokenizer, "chat_template", None):
        raise BadRequest("the model has no chat template: send a prompt", field="messages")
    else:
        ids = tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
    return [int(number) for number in ids]


def sampling(request: Request, room: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    given = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": request.stop,
        "seed": request.seed,
    }
    return SamplingParams(
        max_tokens=min(request.max_tokens or room, room),
        ignore_eos=request.ignore_eos,
        output_kind=RequestOutputKind.DELTA,
        **{name: value for name, value in given.items() if value is not None},
    )
