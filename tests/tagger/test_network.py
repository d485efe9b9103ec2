"""The network and its starts. Needs the training extra; the served model does not."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from pipeline.errors import UsageError
from tagger.conversation import FEATURES
from tagger.network import WEIGHTS_FILE, LengthNetwork, _spaced, load_network, pinball

SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "pad_token_id": 0,
}


def test_layers_are_kept_evenly_spaced() -> None:
    assert _spaced(6, 3) == [0, 2, 5]
    assert _spaced(6, 1) == [0]
    assert _spaced(6, None) == _spaced(6, 9) == list(range(6))


def test_pinball_by_hand() -> None:
    loss = pinball(torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([1.5]))
    assert loss.item() == pytest.approx((0.1 * 1.5 + 0.5 * 0.5 + 0.1 * 0.5) / 3)


def test_bert_fits_the_roberta_architecture_exactly(tmp_path: Path) -> None:
    bert = transformers.BertModel(transformers.BertConfig(num_hidden_layers=3, **SMALL)).eval()
    bert.save_pretrained(tmp_path)
    roberta = load_network(tmp_path).encoder.eval()
    ids = torch.randint(1, 50, (2, 9))
    mask = torch.ones_like(ids)
    ids[1, 6:] = mask[1, 6:] = 0
    with torch.no_grad():
        expected = bert(input_ids=ids, attention_mask=mask).last_hidden_state
        got = roberta(input_ids=ids, attention_mask=mask).last_hidden_state
    assert torch.allclose(got[mask == 1], expected[mask == 1], atol=1e-5)


def test_a_trained_model_is_a_start_and_can_be_cut(tmp_path: Path) -> None:
    config = transformers.RobertaConfig(num_hidden_layers=4, **SMALL)
    trained = LengthNetwork(transformers.RobertaModel(config, add_pooling_layer=False))
    config.save_pretrained(tmp_path)
    torch.save(trained.state_dict(), tmp_path / WEIGHTS_FILE)
    cut = load_network(tmp_path, 2)
    assert cut.encoder.config.num_hidden_layers == len(cut.encoder.encoder.layer) == 2
    assert torch.equal(cut.head.weight, trained.head.weight)
    ids = torch.randint(1, 50, (3, 7))
    quantiles = cut.eval()(ids, torch.ones_like(ids), torch.zeros(3, FEATURES))
    assert (quantiles.diff(dim=1) >= 0).all()


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    transformers.GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="gpt2"):
        load_network(tmp_path)
