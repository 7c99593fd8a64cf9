"""Generation: the model's own next tokens, within its positions, without touching anything of training."""

import pytest
import torch

from megalith.config.model import ModelConfig, Position
from megalith.errors import UserError
from megalith.inference.generate import check_text, continue_text, generate
from megalith.inference.sampling import Sampling
from megalith.models.decoder import Decoder
from megalith.models.init import initialise
from megalith.opening.model import OpenModel
from megalith.tokens.bpe import train_bpe
from megalith.tokens.tokenizer import Tokenizer

GREEDY = Sampling(temperature=0.0)


def make_model(position: Position = Position.LEARNED, vocab_size: int = 31, **changes) -> Decoder:
    config = ModelConfig(2, 16, 2, vocab_size, max_seq_len=12, position=position, init_std=0.2, **changes)
    model = Decoder(config).eval()
    initialise(model, config, seed=0)
    return model


def test_greedy_is_the_argmax_of_each_prefix():
    model, prompt = make_model(), [3, 1, 4]
    new = list(generate(model, prompt, 6, GREEDY))
    for done in range(6):
        logits = model(torch.tensor([prompt + new[:done]]))[-1]
        assert new[done] == logits.argmax().item()


@pytest.mark.parametrize("prompt_tokens, new_tokens, allowed", [(5, 6, True), (5, 7, True), (5, 8, False)])
def test_learned_positions_end_at_the_limit(prompt_tokens, new_tokens, allowed):
    prompt = list(range(prompt_tokens))
    if allowed:
        assert len(list(generate(make_model(), prompt, new_tokens, GREEDY))) == new_tokens
        return
    with pytest.raises(UserError) as error:
        next(generate(make_model(), prompt, new_tokens, GREEDY))
    assert all(
        text in str(error.value) for text in ("5 tokens", "max_new_tokens=8", "= 13", "max_seq_len=12", "up to 7")
    )


@pytest.mark.parametrize("position", [Position.ALIBI, Position.ROPE])
def test_other_positions_go_on(position):
    assert len(list(generate(make_model(position), [1, 2], 20, GREEDY))) == 20


def test_it_ends_before_the_end_of_the_document():
    model = make_model()
    free = list(generate(model, [3, 1, 4], 6, GREEDY))
    end = free[-1]
    assert list(generate(model, [3, 1, 4], 6, GREEDY, end_of_document=end)) == free[: free.index(end)]


def test_rows_that_no_token_has_are_never_drawn():
    hot = Sampling(temperature=50.0, top_k=0)
    assert max(generate(make_model(vocab_size=40), [1], 11, hot, num_tokens=5)) < 5


def test_training_meets_the_random_numbers_it_would_have_met():
    model = make_model()
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    list(generate(model, [1], 8, Sampling(temperature=1.0, seed=3)))
    assert torch.equal(torch.rand(4), expected)


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> OpenModel:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_bpe(["größe naïve 日本 words and words " * 20], 280, path)
    tokenizer = Tokenizer.open(path)
    model = make_model(Position.ALIBI, tokenizer.vocab_size)
    return OpenModel(model, tokenizer, model.config, step=1)


@pytest.mark.parametrize("seed", range(5))
def test_pieces_add_up_to_the_whole_text(opened, seed):
    sampling = Sampling(temperature=2.0, top_k=0, seed=seed)
    prompt_ids = opened.tokenizer.encode("größe")
    ids = list(generate(opened.model, prompt_ids, 40, sampling, opened.tokenizer.end_of_document))
    assert "".join(continue_text(opened, "größe", 40, sampling)) == opened.tokenizer.decode(ids)


def test_an_empty_prompt_begins_a_document(opened):
    ids = list(generate(opened.model, [opened.tokenizer.end_of_document], 5, GREEDY, opened.tokenizer.end_of_document))
    assert "".join(continue_text(opened, "", 5, GREEDY)) == opened.tokenizer.decode(ids)


def test_a_prompt_that_is_no_text_is_refused():
    with pytest.raises(UserError, match="character 3 is not UTF-8"):
        check_text("ab\udcff")
