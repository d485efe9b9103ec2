"""The answer's length from the prompt's alone: for whoever wants no model at all.

It says little (rank correlation 0.1 to 0.15 on ShareGPT), and little more than nothing: very short
and very long prompts have somewhat shorter answers.
"""

from bisect import bisect_right

from pipeline.messages import LengthEstimate

SOURCE = "prompt_length"
PROMPT_TOKENS = (8, 16, 32, 64, 128, 256, 512)
"""Where one class of prompts ends and the next begins."""
ANSWER_TOKENS = (
    (38.0, 225.0, 509.0),
    (68.0, 254.0, 515.0),
    (71.0, 270.0, 553.0),
    (67.0, 278.0, 569.0),
    (61.0, 279.0, 589.0),
    (75.0, 245.0, 577.0),
    (41.0, 263.0, 592.0),
    (16.0, 240.0, 713.0),
)
"""p10, p50, p90 of the answers in each class; from 45,125 turns of ShareGPT, cl100k tokens."""


def by_prompt_length(prompt_tokens: int, correction: float = 1.0) -> LengthEstimate:
    """`correction` is what earlier answers taught (LiveError)."""
    p10, p50, p90 = ANSWER_TOKENS[bisect_right(PROMPT_TOKENS, prompt_tokens)]
    return LengthEstimate(
        p10=p10 * correction,
        p50=p50 * correction,
        p90=p90 * correction,
        source=SOURCE,
        correction=correction,
    )
