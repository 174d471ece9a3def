"""The network of SiT and the files it was published as."""

import torch
from torch import nn

from backbone.site import AttentionSite
from backbone.softmax import SoftmaxAttention, SoftmaxConfig
from backbone.transformer import TransformerConfig
from dit.model import DiT
from sit.model import SiT, without_unused_half


def softmax(site: AttentionSite) -> nn.Module:
    return SoftmaxAttention(SoftmaxConfig(), site)


def make_config(learned_variance: bool) -> TransformerConfig:
    return TransformerConfig(
        latent_size=(8, 8),
        in_channels=3,
        patch_size=2,
        dim=16,
        depth=1,
        num_heads=2,
        num_classes=4,
        learned_variance=learned_variance,
        time_scale=1.0,
    )


def published() -> SiT:
    network = SiT(make_config(learned_variance=True), softmax)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    return network


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(2, 3, 8, 8), torch.tensor([0.1, 0.9]), torch.tensor([0, 4])


def test_variance_channels_are_cut_off_by_sit_and_kept_by_dit() -> None:
    sit = published()
    dit = DiT(make_config(learned_variance=True), softmax)
    dit.load_state_dict(sit.state_dict())
    x, t, y = inputs()
    assert dit(x, t, y).shape == (2, 6, 8, 8)
    assert torch.equal(sit(x, t, y), dit(x, t, y)[:, :3])


def test_a_published_file_fits_after_dropping_what_it_never_used() -> None:
    large = published()
    small = SiT(make_config(learned_variance=False), softmax)
    state, notices = without_unused_half(large.state_dict(), small.config)
    small.load_state_dict(state)
    x, t, y = inputs()
    torch.testing.assert_close(small(x, t, y), large(x, t, y))
    assert notices == ["dropped output channels 3 to 5, which the published SiT never uses"]


def test_weights_that_fit_are_left_alone() -> None:
    for learned_variance in (False, True):
        config = make_config(learned_variance)
        state = SiT(config, softmax).state_dict()
        fitting, notices = without_unused_half(state, config)
        assert notices == []
        assert all(torch.equal(fitting[name], state[name]) for name in state)
