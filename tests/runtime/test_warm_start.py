"""A run that begins with another's weights takes what fits, and says what does not."""

from dataclasses import replace

import pytest
import torch
from test_checkpoint import STATE

from runtime import checkpoint as checkpoints
from runtime.build import build_network
from runtime.config_schema import to_yaml
from runtime.errors import UserError
from runtime.resuming import find_checkpoint
from runtime.run_folder import step_dir
from runtime.training_config import TrainConfig
from runtime.warm_start import CLASS_TABLE, Classes, take_over

CONFIG = TrainConfig(model="DiT-XXS/2", image_size=8, downsampling=1, num_classes=3, seed=1)
ABC = Classes(("a", "b", "c"), has_null_label=True)


def weights_of(config):
    """Weights that no initialisation makes: there, many are zero."""
    torch.manual_seed(3)
    return {n: torch.randn_like(t) for n, t in build_network(config).state_dict().items()}


def start(config, ours, theirs=ABC, their_config=CONFIG):
    network, weights = build_network(config), weights_of(their_config)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    taken_over = take_over(network, weights, ours, theirs)
    return network.state_dict(), before, weights, taken_over


def test_other_classes_begin_afresh_and_all_else_is_taken_over():
    ours = Classes(tuple("vwxyz"), has_null_label=True)
    now, before, weights, taken_over = start(replace(CONFIG, num_classes=5), ours)
    assert len(now[CLASS_TABLE]) == 6
    assert now[CLASS_TABLE][:5].equal(before[CLASS_TABLE][:5])
    assert now[CLASS_TABLE][-1].equal(weights[CLASS_TABLE][-1])  # the empty class stays last
    for name in now.keys() - {CLASS_TABLE, "pos_embed"}:
        assert now[name].equal(weights[name]), name
    assert now["pos_embed"].equal(before["pos_embed"])  # a fixed table follows from the config
    assert list(taken_over.not_loaded) == [CLASS_TABLE]
    reason = taken_over.not_loaded[CLASS_TABLE]
    assert "5 classes in the place of 3" in reason and "the empty class is kept" in reason


def test_as_many_classes_of_other_names_are_other_classes():
    now, before, _, taken_over = start(CONFIG, Classes(("a", "c", "b"), has_null_label=True))
    assert now[CLASS_TABLE][:3].equal(before[CLASS_TABLE][:3])
    assert CLASS_TABLE in taken_over.not_loaded


def test_the_same_classes_are_taken_over():
    now, _, weights, taken_over = start(CONFIG, ABC)
    assert now[CLASS_TABLE].equal(weights[CLASS_TABLE])
    assert taken_over.not_loaded == {} and taken_over.unused == []


def test_an_empty_class_that_only_one_of_them_has_is_no_class_of_the_other():
    without = replace(CONFIG, label_drop=0.0)
    names = Classes(ABC.names, has_null_label=False)
    now, _, weights, taken_over = start(without, names)
    assert now[CLASS_TABLE].equal(weights[CLASS_TABLE][:3])
    assert taken_over.not_loaded == {}
    now, before, weights, taken_over = start(CONFIG, ABC, names, without)
    assert now[CLASS_TABLE][:3].equal(weights[CLASS_TABLE])
    assert now[CLASS_TABLE][3].equal(before[CLASS_TABLE][3])
    assert "the empty class, which the checkpoint lacks" in taken_over.not_loaded[CLASS_TABLE]


def test_another_attention_keeps_its_own_weights_and_every_difference_is_listed():
    now, before, weights, taken_over = start(replace(CONFIG, attention="vca"), ABC)
    for name in taken_over.not_loaded:
        assert ".attn." in name and now[name].equal(before[name])
    for name in taken_over.loaded:
        assert now[name].equal(weights[name])
    assert {*taken_over.loaded, *taken_over.not_loaded} == now.keys() - {"pos_embed"}
    assert set(taken_over.unused) == weights.keys() - now.keys()
    for name in (*taken_over.not_loaded, *taken_over.unused):
        assert name in str(taken_over)


def test_a_network_of_another_width_is_refused():
    with pytest.raises(UserError, match=r"another network: t_embedder.* has shape"):
        start(replace(CONFIG, model="DiT-XS/2", attention="vca"), ABC)


@pytest.fixture
def run_dir(tmp_path):
    """A run folder with checkpoints of steps 1 and 2."""
    for step in (1, 2):
        state = replace(STATE, step=step, config=to_yaml(CONFIG))
        checkpoints.save(step_dir(tmp_path / "run", step), state, {}, {}, {})
    return tmp_path / "run"


def asking(run_dir, **settings):
    return replace(CONFIG, output_dir=str(run_dir), **settings)


def test_auto_goes_on_from_the_newest_and_begins_where_there_is_none(run_dir, tmp_path):
    assert find_checkpoint(asking(run_dir)).state.step == 2
    assert find_checkpoint(asking(tmp_path / "new")) is None


def test_a_named_checkpoint_is_taken_or_refused_but_never_replaced(run_dir, tmp_path):
    named = asking(tmp_path / "new", resume=str(step_dir(run_dir, 1)))
    assert find_checkpoint(named).state.step == 1
    with pytest.raises(UserError, match=r"step-0000002' is newer than resume"):
        find_checkpoint(replace(named, output_dir=str(run_dir)))
    (step_dir(run_dir, 2) / "optimizer.pt").write_bytes(b"")
    with pytest.raises(UserError, match=r"is not whole: optimizer.pt has 0 bytes"):
        find_checkpoint(asking(run_dir, resume=str(step_dir(run_dir, 2))))
    assert find_checkpoint(asking(run_dir)).state.step == 1
    with pytest.raises(UserError, match=r"resume = 'atuo' is neither auto, never nor a step"):
        find_checkpoint(asking(run_dir, resume="atuo"))
