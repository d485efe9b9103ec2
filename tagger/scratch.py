"""A start for where no pre-trained encoder is to be had: a small RoBERTa with random weights, and a
byte-level vocabulary made from the training prompts. Much behind a pre-trained start
(docs/length-model.md has figures)."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from transformers import RobertaConfig, RobertaModel

from tagger.dataset import Row
from tagger.model import TOKENIZER_FILE

VOCABULARY = 12_000
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
LAYERS = 4
WIDTH = 256
HEADS = 8
POSITIONS = 514  # as RoBERTa's own: 512 and its two


def make_scratch(folder: Path, rows: Sequence[Row], layers: int | None) -> Path:
    """Write encoder, configuration and tokenizer.json to `folder`, unless they are there."""
    if (folder / TOKENIZER_FILE).is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(
        (row.prompt for row in rows),
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    vocabulary = trainer.get_vocab()
    config = RobertaConfig(
        vocab_size=len(vocabulary),
        hidden_size=WIDTH,
        num_hidden_layers=layers or LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=POSITIONS,
        type_vocab_size=1,
        bos_token_id=vocabulary["<s>"],
        pad_token_id=vocabulary["<pad>"],
        eos_token_id=vocabulary["</s>"],
    )
    RobertaModel(config, add_pooling_layer=False).save_pretrained(folder)
    # Last: its presence says that the folder is whole.
    (folder / TOKENIZER_FILE).write_text(json.dumps(json.loads(trainer.to_str())))
    return folder
