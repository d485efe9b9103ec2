"""The length model: a RoBERTa encoder, mean pooling, what is known of the conversation beside it,
and a head of three ordered quantiles.

The default start is all-MiniLM-L6-v2, whose BERT weights fit the RoBERTa architecture exactly: one
token type, position rows shifted by the padding index, BERT's own layer-norm epsilon.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, BertModel, RobertaConfig, RobertaModel

from pipeline.errors import UsageError
from tagger.conversation import FEATURES

QUANTILES = (0.1, 0.5, 0.9)
WEIGHTS_FILE = "weights.pt"
HISTORY_WIDTH = 32
MIX_WIDTH = 192
DROPOUT = 0.1


class LengthNetwork(nn.Module):
    """ids, mask [batch, length], features [batch, FEATURES] → p10, p50, p90 of log(1 + tokens),
    [batch, 3], in order."""

    def __init__(self, encoder: RobertaModel) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.config.hidden_size
        self.history = nn.Sequential(nn.Linear(FEATURES, HISTORY_WIDTH), nn.GELU())
        self.mix = nn.Sequential(
            nn.Dropout(DROPOUT), nn.Linear(width + HISTORY_WIDTH, MIX_WIDTH), nn.GELU()
        )
        self.head = nn.Linear(MIX_WIDTH, 3)
        # Answers of about 200 tokens, give or take a factor of three: a start near the data.
        nn.init.normal_(self.head.weight, std=0.01)
        with torch.no_grad():
            self.head.bias.copy_(torch.tensor([0.8, 5.3, 0.6]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, features: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(states.dtype)
        pooled = (states * weight).sum(1) / weight.sum(1)
        mixed = self.mix(torch.cat((pooled, self.history(features)), dim=-1))
        below, middle, above = self.head(mixed).unbind(-1)
        # Distances from the median are positive, so the quantiles cannot cross.
        return torch.stack(
            (
                middle - nn.functional.softplus(below),
                middle,
                middle + nn.functional.softplus(above),
            ),
            dim=-1,
        )

    def fresh_parts(self) -> list[nn.Module]:
        """What starts from nothing where the encoder starts from a trained one."""
        return [self.history, self.mix, self.head]


def pinball(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean quantile loss of [batch, 3] against [batch]."""
    error = target.unsqueeze(-1) - predicted
    level = predicted.new_tensor(QUANTILES)
    return torch.maximum(level * error, (level - 1) * error).mean()


def roberta_from_bert(folder: Path, layers: int | None) -> RobertaModel:
    """BERT weights of `folder` in the RoBERTa architecture; `layers` keeps so many."""
    bert = BertModel.from_pretrained(folder, attn_implementation="eager")
    state: dict[str, Any] = bert.state_dict()
    old = bert.config
    kept = _spaced(old.num_hidden_layers, layers)
    pad = old.pad_token_id
    config = RobertaConfig(
        vocab_size=old.vocab_size,
        hidden_size=old.hidden_size,
        num_hidden_layers=len(kept),
        num_attention_heads=old.num_attention_heads,
        intermediate_size=old.intermediate_size,
        max_position_embeddings=old.max_position_embeddings + pad + 1,
        type_vocab_size=1,
        pad_token_id=pad,
        layer_norm_eps=old.layer_norm_eps,
        attn_implementation="eager",
    )
    moved: dict[str, Any] = {}
    for name, value in state.items():
        if name.startswith("encoder.layer."):
            number, rest = name.removeprefix("encoder.layer.").split(".", 1)
            if int(number) in kept:
                moved[f"encoder.layer.{kept.index(int(number))}.{rest}"] = value
        elif name == "embeddings.position_embeddings.weight":
            padding = torch.zeros(pad + 1, value.shape[1])
            moved[name] = torch.cat((padding, value))
        elif name == "embeddings.token_type_embeddings.weight":
            moved[name] = value[:1]
        elif not name.startswith("pooler."):
            moved[name] = value
    model = RobertaModel(config, add_pooling_layer=False)
    missing, unexpected = model.load_state_dict(moved, strict=False)
    wrong = [
        name for name in missing if "position_ids" not in name and "token_type_ids" not in name
    ]
    if wrong or unexpected:
        raise UsageError(f"{folder}: weights do not fit: {wrong + list(unexpected)}")
    return model


def load_network(folder: Path, layers: int | None = None) -> LengthNetwork:
    """A network to train on or to export, on whichever start `folder` holds.

    Either a length model that was trained before, which keeps its head, or an encoder: RoBERTa's,
    or BERT's in RoBERTa's architecture. `layers` keeps so many, evenly spaced. Three cut out of a
    trained model of six and trained on (600 steps each) do better than three trained from the
    encoder (700 steps): first-turn Spearman 0.575 against 0.552 on ShareGPT.
    """
    if (folder / WEIGHTS_FILE).is_file():
        config = RobertaConfig.from_pretrained(folder)
        config._attn_implementation = "eager"  # the form that exports to plain operators
        network = LengthNetwork(RobertaModel(config, add_pooling_layer=False))
        try:
            network.load_state_dict(torch.load(folder / WEIGHTS_FILE, weights_only=True))
        except RuntimeError as error:  # torch's own word for other names or shapes
            raise UsageError(f"{folder}: weights of another form; train it again") from error
        _cut(network.encoder, layers)
        return network
    kind = AutoConfig.from_pretrained(folder).model_type
    if kind == "bert":
        return LengthNetwork(roberta_from_bert(folder, layers))
    if kind != "roberta":
        raise UsageError(f"{folder}: is a {kind} model, not roberta or bert")
    encoder = RobertaModel.from_pretrained(
        folder, add_pooling_layer=False, attn_implementation="eager"
    )
    _cut(encoder, layers)
    return LengthNetwork(encoder)


def _cut(encoder: RobertaModel, layers: int | None) -> None:
    kept = _spaced(encoder.config.num_hidden_layers, layers)
    encoder.encoder.layer = nn.ModuleList(encoder.encoder.layer[number] for number in kept)
    encoder.config.num_hidden_layers = len(kept)


def _spaced(count: int, wanted: int | None) -> list[int]:
    """Indices of `wanted` of `count` layers, evenly spaced, the first and the last among them."""
    if wanted is None or wanted >= count:
        return list(range(count))
    if wanted == 1:
        return [0]
    return [round(number * (count - 1) / (wanted - 1)) for number in range(wanted)]
