"""The level that remembered captions are read through: nothing without memories, the same in steps and at once."""

import pytest
import torch

import tiny
from meshcap.decoding import Beam, Extended, Extension, Greedy, Rules, Sampling, Shares, decode
from meshcap.errors import MeshcapError
from meshcap.models.memory_level import (
    Listening,
    Memories,
    MemoryConfig,
    MemoryLevel,
    Remembering,
    pack_memories,
    picture_vectors,
)

PICTURES = tiny.pictures(3, 6, 2)
RULES = Rules(max_length=7)
V, PAD = tiny.VOCAB, 1
SMALL = {"d_head": 8, "reader_head": 4, "d_ff": 12, "d_pointer": 8, "captions": 4}


def level(*, seed: int = 0, loud: float = 0.5, **sizes) -> MemoryLevel:
    """With weights that matter: those that begin with zeros too."""
    torch.manual_seed(seed)
    found = MemoryLevel(MemoryConfig.of(tiny.shared("m2"), **{**SMALL, **sizes}))
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(loud * torch.randn_like(parameter))
        found.switch.bias.fill_(0.5)
        found.nouns[5:8] = 1
    return found.eval()


def memories(*, middle: bool = True) -> Memories:
    """Of three pictures; the one in the middle may have none. Words 10 and 11 are for the moment."""
    captions = [
        [([4, 10, 6], 0.9, 0), ([4, 5], 0.8, 1), ([11], 0.4, 2)],
        [([7, 8, 9, 4, 5, 6], 0.5, 0)] if middle else [],
        [([9, 10, 4, 4], 0.2, 0), ([8], 0.1, 1)],
    ]
    return pack_memories(captions, (5, 6), pad=PAD, most=4)


@pytest.mark.parametrize("strategy", [Beam(3), Sampling(4, seed=3)], ids=repr)
def test_steps_are_the_teacher_forced_pass(strategy) -> None:
    model = Remembering(tiny.shared("m2"), level(), memories())
    found = decode(model, PICTURES, strategy, RULES, n_best=3, attention=True)
    before = torch.cat((torch.full_like(found.ids[..., :1], model.config.bos), found.ids[..., :-1]), -1)
    with torch.no_grad():
        log_probs = model(PICTURES, before)
        encoded = model.encode(PICTURES)
        wanted = model.read(encoded, before, found.ids)
    real = found.ids != PAD
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(log_probs.shape[:-1]))
    forced = log_probs.gather(-1, found.ids[..., None])[..., 0]
    torch.testing.assert_close(found.log_probs[real], forced[real], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(wanted[real], forced[real], atol=1e-5, rtol=1e-4)
    assert (found.ids >= V).any()
    assert found.attention["listened"].shape == found.ids.shape
    assert found.attention["recalled"].shape == (*found.ids.shape, 3)
    assert (found.attention["listened"] > 0).all()


def test_the_copied_share_by_hand() -> None:
    """p' = (1 - g) p + g Σ a over the places of a word."""
    memory, read = level(), memories()
    y, log_probs = torch.randn(3, 5, 16), torch.randn(3, 5, V).log_softmax(-1)
    state = memory.encode(tiny.shared("m2").decoder.words, read.state())
    with torch.no_grad():
        weights, switch = memory.point(y, log_probs, state)
        said = Listening(memory, state, 2).say(y, log_probs).exp()
    for word in range(V + 2):
        there = read.ids.flatten(1) == word
        if word == PAD:
            continue
        own = log_probs.exp()[..., word] if word < V else 0
        expected = (1 - switch[..., 0]) * own + switch[..., 0] * (weights * there[:, None]).sum(-1)
        torch.testing.assert_close(said[..., word], expected)
    assert float(weights[0, :, read.ids.flatten(1)[0] == PAD].max()) == 0


def test_a_picture_without_memories_is_captioned_as_before() -> None:
    plain = tiny.shared("m2")
    alone = decode(plain, PICTURES, Beam(3), RULES, n_best=3)
    found = decode(Remembering(plain, level(), memories(middle=False)), PICTURES, Beam(3), RULES, n_best=3)
    assert torch.equal(found.ids[1], alone.ids[1])
    assert torch.equal(found.log_probs[1], alone.log_probs[1])
    assert not torch.equal(found.ids[0], alone.ids[0])


def test_a_new_level_leaves_everything_nearly_as_it_is() -> None:
    """Only the switch lets a little through before training."""
    plain, fresh = tiny.shared("m2"), MemoryLevel(MemoryConfig.of(tiny.shared("m2"), **SMALL))
    ids = torch.tensor([[2, 4, 5]]).expand(3, -1)
    with torch.no_grad():
        before, after = plain(PICTURES, ids), Remembering(plain, fresh.eval(), memories())(PICTURES, ids)
    assert (before.exp() - after.exp()[..., :V]).abs().max() < 0.02


def test_order_of_captions_matters_by_their_ranks_alone() -> None:
    model, given = tiny.shared("m2"), memories()
    turned = Memories(*(one.flip(1) for one in (given.ids, given.similarity, given.rank)), given.stand_in)
    ids = torch.tensor([[2, 4, 5, 10]]).expand(3, -1)
    with torch.no_grad():
        one, other = (Remembering(model, level(), each)(PICTURES, ids) for each in (given, turned))
    torch.testing.assert_close(one, other)


def test_names_go_on_top() -> None:
    """An extension around a model that remembers: its ids follow those of memory."""
    inner = Remembering(tiny.shared("m2"), level(), memories())
    outer = Extension(("Rex",), (5,), Shares((V + 2,), ((V,),), torch.ones(3, 1)))
    found = decode(Extended(inner, outer), PICTURES, Greedy(), RULES)
    assert not (found.ids == V).any()


def test_gradients_reach_the_level_and_not_the_model() -> None:
    model = tiny.build("m2").requires_grad_(False)
    memory = MemoryLevel(MemoryConfig.of(model, **SMALL))
    reading = Remembering(model, memory, memories())
    ids = torch.tensor([[[4, 10, 6, 3]]]).expand(3, -1, -1)
    before = torch.cat((torch.full_like(ids[..., :1], 2), ids[..., :-1]), -1)
    for _ in range(2):  # the first step moves what begins with zeros, and so opens the way to the rest
        memory.zero_grad()
        loss = -reading.read(reading.encode(PICTURES), before, ids).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in memory.parameters():
                parameter.add_(parameter.grad, alpha=-0.5)
    for name, parameter in memory.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


def test_learns_to_say_a_word_that_no_weight_knows() -> None:
    """Whatever is remembered of each picture's animal is copied, also in pictures with another word for it."""
    torch.manual_seed(1)
    model = tiny.build("m2").requires_grad_(False)
    memory = MemoryLevel(MemoryConfig.of(model, **SMALL))
    reading = Remembering(model, memory, words=2)
    optimizer = torch.optim.Adam(memory.parameters(), 0.03)
    regions = tiny.pictures(4, 4, 4, 4)
    encoded = model.encode(regions)
    with torch.no_grad():
        for _ in range(40):
            word = V + torch.randint(0, 2, (4, 1, 1))  # one of two new words is remembered of each picture
            target = torch.cat((torch.full_like(word, 4), word, torch.full_like(word, 3)), -1)
            read = torch.cat((torch.full_like(word, 4), word, torch.full_like(word, 6)), -1)
            given = Memories(read, torch.full((4, 1), 0.9), torch.zeros(4, 1, dtype=torch.long), torch.tensor([5, 5]))
            before = torch.cat((torch.full_like(target[..., :1], 2), target[..., :-1]), -1)
            with torch.enable_grad():
                loss = -reading.read(reading.recall(encoded, given.state()), before, target).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    both = Memories(
        torch.tensor([[[4, V, 6]], [[4, V + 1, 6]], [[4, V, 6]], [[4, V + 1, 6]]]),
        torch.full((4, 1), 0.9),
        torch.zeros(4, 1, dtype=torch.long),
        torch.tensor([5, 5]),
    )
    found = decode(Remembering(model, memory.eval(), both), regions, Beam(3), RULES)
    assert found.ids[:, 0, 1].tolist() == [V, V + 1, V, V + 1]


def test_saved_in_8_bits(tmp_path) -> None:
    kept = level(entries=3, least_similarity=0.25)
    kept.save(tmp_path / "memory.safetensors", bits=8)
    again = MemoryLevel.load(tmp_path / "memory.safetensors")
    assert again.config == kept.config
    for name, tensor in kept.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, atol=0.02, rtol=0.01)
    with pytest.raises(MeshcapError, match=r"memory was made for d_model 16, and this model has 20"):
        Remembering(tiny.build("m2", d_model=20), again)
    (tmp_path / "memory.json").write_text("{}")
    with pytest.raises(MeshcapError, match="does not say the sizes of a memory"):
        MemoryLevel.load(tmp_path / "memory.safetensors")


def test_vectors_of_pictures() -> None:
    """The mean of regions of length 1, less the centre: by hand, and padding is no region."""
    regions = tiny.pictures(3, 6)
    middle = torch.linspace(-0.1, 0.1, tiny.WIDTH)
    found = picture_vectors(regions, middle)
    for picture in range(2):
        one = tiny.one(regions, picture).features[0]
        mean = (one / one.norm(dim=-1, keepdim=True)).mean(0) - middle
        torch.testing.assert_close(found[picture], mean / mean.norm())
    torch.testing.assert_close(picture_vectors(tiny.one(regions, 0))[0], picture_vectors(regions)[0])
