"""The average follows its closed form in fp32, whatever the weights are."""

import pytest
import torch
from torch import nn

from runtime.ema import Ema, EmaConfig, decay_at, initial_share


def network(dtype=torch.float32):
    module = nn.Linear(3, 2, dtype=dtype)
    module.register_buffer("table", torch.ones(2))
    module.frozen = nn.Parameter(torch.full((2,), 0.1), requires_grad=False)
    return module


@pytest.mark.parametrize("warmup", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_average_is_the_sum_of_its_updates(warmup, dtype):
    module, config = network(dtype), EmaConfig(decay=0.9999, warmup=warmup)
    ema, expected = Ema(module, config), module.weight.detach().double()
    for update in range(1, 200):
        with torch.no_grad():
            module.weight += 0.01
        ema.update(module)
        decay = min(0.9999, (1 + update) / (10 + update)) if warmup else 0.9999
        expected = decay * expected + (1 - decay) * module.weight.detach().double()
    assert ema.average["weight"].dtype == torch.float32
    torch.testing.assert_close(ema.average["weight"].double(), expected, atol=1e-5, rtol=1e-5)
    assert not torch.equal(ema.average["weight"], module.weight.float())


def test_frozen_tensors_are_not_averaged_but_are_in_the_state():
    module = network()
    ema = Ema(module, EmaConfig())
    for _ in range(10):
        ema.update(module)
    state = ema.state_dict(module)
    assert "frozen" not in ema.average
    assert state.keys() == module.state_dict().keys()
    assert torch.equal(state["frozen"], module.frozen)


def test_loading_continues_the_count_and_misses_nothing_silently():
    module = network()
    ema = Ema(module, EmaConfig())
    ema.load({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, num_updates=7)
    assert ema.num_updates == 7
    assert torch.equal(ema.average["weight"], torch.ones(2, 3))
    with pytest.raises(KeyError, match="bias"):
        ema.load({"weight": torch.ones(2, 3)}, num_updates=7)


def test_initial_share_is_the_product_of_the_decays():
    assert initial_share(EmaConfig(decay=0.9, warmup=False), 10) == pytest.approx(0.9**10)
    warm = EmaConfig(decay=0.9999)
    product = 1.0
    for update in range(1, 6):
        product *= decay_at(warm, update)
    assert initial_share(warm, 5) == pytest.approx(product)
    assert initial_share(warm, 0) == 1.0
    assert initial_share(warm, 10_000) == 0.0
