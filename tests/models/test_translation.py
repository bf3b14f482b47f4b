"""The translation models in fairseq's frame: padding, incremental decoding, beam search, and what does not fit."""

import random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary, data_utils
from fairseq.models.transformer import TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator

from fwp_fairseq.models.translation import FastWeightTranslationModel, TranslationModelConfig, transformer_config
from fwp_fairseq.models.translation_architectures import ROWS

SOFTMAX = ROWS["transformer"]
VARIANTS = {
    "transformer": SOFTMAX,
    "linear": ROWS["linear"],
    "performer": {**ROWS["linear"], "feature_map": "favor", "m": 6},
    "dpfp": {**ROWS["linear"], "feature_map": "dpfp", "nu": 2},
    "elu_delta": ROWS["elu_delta"],
    "dpfp_delta": {**ROWS["elu_delta"], "feature_map": "dpfp", "nu": 2},
    "delta_output": {**ROWS["elu_delta"], "attention_normalization": "output"},
    "delta_both": {**ROWS["elu_delta"], "attention_normalization": "both"},
    "encoder": {**SOFTMAX, "encoder_attention": "linear"},
    "decoder": {**SOFTMAX, "decoder_attention": "linear"},
    "cross": {**SOFTMAX, "cross_attention": "linear"},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)
either_side = pytest.mark.parametrize("left_pad", [False, True], ids=["right", "left"])


def dictionary(words=30):
    made = Dictionary()
    for number in range(words):
        made.add_symbol(f"w{number}")
    return made


DICTIONARY = dictionary()
PAD, EOS = DICTIONARY.pad(), DICTIONARY.eos()


def tiny(variant="linear", **parts):
    torch.manual_seed(3)
    sizes = {"d_model": 16, "heads": 2, "d_ffn": 24, "encoder_layers": 2, "decoder_layers": 2}
    cfg = TranslationModelConfig(**{**sizes, **VARIANTS[variant], **parts})
    task = SimpleNamespace(source_dictionary=DICTIONARY, target_dictionary=DICTIONARY)
    return FastWeightTranslationModel.build_model(cfg, task).eval()


def sentences(lengths, seed=1):
    draw = random.Random(seed)
    return [torch.tensor([draw.randrange(4, len(DICTIONARY)) for _ in range(length)] + [EOS]) for length in lengths]


def batch(rows, left_pad=False):
    return data_utils.collate_tokens(rows, PAD, left_pad=left_pad)


def lengths(rows):
    return torch.tensor([len(row) for row in rows])


@every_variant
@either_side
def test_decoding_step_by_step_equals_the_whole_target(variant, left_pad):
    model, source, target = tiny(variant), sentences([9, 2, 5]), batch(sentences([12, 12, 12], seed=2))
    source_tokens, kept = batch(source, left_pad), {}
    whole, _ = model(source_tokens, lengths(source), target)
    encoded = model.encoder(source_tokens, lengths(source))
    steps = [model.decoder(target[:, : t + 1], encoded, kept)[0] for t in range(target.shape[1])]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-3, atol=1e-5)


@every_variant
@either_side
def test_a_padded_batch_equals_its_sentences_one_by_one(variant, left_pad):
    model, source, target = tiny(variant), sentences([1, 17, 6, 0]), sentences([3, 1, 14, 7], seed=2)
    together, _ = model(batch(source, left_pad), lengths(source), batch(target))
    for number, (one, other) in enumerate(zip(source, target)):
        alone, _ = model(one[None], lengths([one]), other[None])
        torch.testing.assert_close(together[number : number + 1, : len(other)], alone, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("variant", [name for name, parts in VARIANTS.items() if parts.get("decoder_attention") != "softmax"])
def test_targets_padded_on_the_left(variant):
    model, source, target = tiny(variant), sentences([4, 4]), sentences([9, 3], seed=2)
    together, _ = model(batch(source), lengths(source), batch(target, left_pad=True))
    alone, _ = model(source[1][None], lengths(source[1:]), target[1][None])
    torch.testing.assert_close(together[1:, -len(target[1]) :], alone, rtol=1e-3, atol=1e-5)


@either_side
def test_one_padded_sentence_alone(left_pad):
    model, (source,), target = tiny(), sentences([3]), batch(sentences([4], seed=2))
    longer = torch.full((6,), PAD)
    padded = torch.cat((longer, source) if left_pad else (source, longer))
    torch.testing.assert_close(model(padded[None], None, target)[0], model(source[None], None, target)[0])


def test_a_source_of_padding_alone_gives_numbers():
    model = tiny()
    logits, _ = model(torch.full((2, 5), PAD), None, batch(sentences([3, 3])))
    assert torch.isfinite(logits).all()


def translate(model, source, beam, left_pad=True, **options):
    """The best hypothesis of each sentence."""
    generator = SequenceGenerator([model], DICTIONARY, beam_size=beam, max_len_b=12, **options)
    sample = {"net_input": {"src_tokens": batch(source, left_pad), "src_lengths": lengths(source)}}
    return [hypotheses[0]["tokens"].tolist() for hypotheses in generator.generate([model], sample)]


@every_variant
@pytest.mark.parametrize("beam", [1, 4])
def test_translations_do_not_depend_on_the_batch(variant, beam):
    # untied, since an untrained model with tied embeddings repeats its last word
    model, source = tiny(variant, share_all_embeddings=False), sentences([7, 1, 12, 3, 3, 9])
    alone = [translate(model, [one], beam)[0] for one in source]
    assert len(set(map(tuple, alone))) >= 3
    shuffled = random.Random(2).sample(range(len(source)), len(source))
    for order, left_pad in ((range(len(source)), True), (shuffled, True), (shuffled, False)):
        assert translate(model, [source[i] for i in order], beam, left_pad) == [alone[i] for i in order]


def test_beam_search_finds_what_an_exhaustive_one_does():
    model, (source,) = tiny("elu_delta"), sentences([5])
    model.decoder.output_projection.weight.data[:] *= 3  # peaked, so that the beam loses nothing
    generator = SequenceGenerator([model], DICTIONARY, beam_size=30, max_len_a=0, max_len_b=2, normalize_scores=False)
    sample = {"net_input": {"src_tokens": source[None], "src_lengths": lengths([source])}}
    best = generator.generate([model], sample)[0][0]
    words = range(4, len(DICTIONARY))
    prefixes = torch.tensor([(EOS, first, second) for first in words for second in words])
    logits, _ = model(source.expand(len(prefixes), -1), None, prefixes)
    log_prob, scores = logits.log_softmax(-1), {}
    for (_, first, second), (one, two, three) in zip(prefixes.tolist(), log_prob.tolist()):
        scores[first, second] = one[first] + two[second] + three[EOS]
        scores[first,] = one[first] + two[EOS]
    assert best["score"].item() == pytest.approx(scores[tuple(best["tokens"].tolist()[:-1])], abs=1e-4)
    assert best["score"].item() == pytest.approx(max(scores.values()), abs=1e-4)


def backwards(count, seed):
    """Sentences of up to three of eight words, and their translations: other words, in the opposite order."""
    draw, first, pairs = random.Random(seed), 4, []
    for _ in range(count):
        sentence = [draw.randrange(first, first + 8) for _ in range(draw.randint(1, 3))]
        pairs.append((torch.tensor([*sentence, EOS]), torch.tensor([*(word + 8 for word in reversed(sentence)), EOS])))
    return zip(*pairs)


@pytest.mark.parametrize("variant", ["transformer", "linear", "performer", "dpfp", "elu_delta", "dpfp_delta"])
def test_every_row_learns_a_small_language(variant):
    features = {"m": 48} if variant == "performer" else {}
    sizes = {"d_model": 32, "heads": 1, "d_ffn": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    model, steps = tiny(variant, **sizes, **features).train(), 250
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 20) * (1 - step / steps)
        source, target = backwards(64, seed=step)
        logits, _ = model(batch(source, left_pad=True), None, batch([row.roll(1) for row in target]))
        loss = F.cross_entropy(logits.flatten(0, 1), batch(target).flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    source, target = backwards(40, seed=-1)
    translations = translate(model.eval(), source, beam=4)
    assert sum(ours == theirs.tolist() for ours, theirs in zip(translations, target)) >= 34


def test_softmax_everywhere_is_fairseqs_own_transformer():
    ours = tiny("transformer")
    task = SimpleNamespace(source_dictionary=DICTIONARY, target_dictionary=DICTIONARY)
    theirs = TransformerModelBase.build_model(transformer_config(ours.cfg.parts), task).eval()
    theirs.load_state_dict(ours.state_dict())
    arguments = batch(sentences([4, 6])), None, batch(sentences([5, 2], seed=2))
    assert torch.equal(ours(*arguments)[0], theirs(*arguments)[0])


def test_rows_of_the_sum_rule_have_the_parameters_of_the_transformer():
    counts = {name: tiny(name).parameter_count for name in ("transformer", "linear", "performer", "dpfp", "elu_delta")}
    assert len({counts[name] for name in ("transformer", "linear", "performer", "dpfp")}) == 1
    assert counts["elu_delta"] == counts["linear"] + 2 * (16 * 2 + 2)  # beta, two layers


@pytest.mark.parametrize(
    "variant, expected",
    [("transformer", 2 * 2 * (10 + 7) * 16), ("linear", 2 * 2 * 2 * 8 * 9), ("elu_delta", 2 * (2 * 8 * 8 + 2 * 8 * 9))],
)
def test_numbers_that_decoding_keeps_of_a_sentence(variant, expected):
    model, source, target, kept = tiny(variant), batch(sentences([9])), batch(sentences([6])), {}
    encoded = model.encoder(source)
    for t in range(7):
        model.decoder(target[:, : t + 1], encoded, kept)
    numbers = sum(x.numel() for buffer in kept.values() for x in buffer.values() if x is not None and x.dim() == 4)
    sums = sum(x.numel() for buffer in kept.values() for name, x in buffer.items() if name == "sums")
    assert numbers + sums == model.state_size(source_length=10, target_length=7) == expected


@every_variant
def test_fairseqs_checkpointing_of_the_weights(variant):
    model, other = tiny(variant), tiny(variant)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    other.load_state_dict(model.state_dict())
    arguments = batch(sentences([4])), None, batch(sentences([5], seed=2))
    assert torch.equal(model(*arguments)[0], other(*arguments)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_translates(dtype):
    model, source = tiny("dpfp").to(dtype), sentences([7, 1])
    logits, _ = model(batch(source), lengths(source), batch(sentences([3, 9], seed=2)))
    assert logits.dtype == dtype and torch.isfinite(logits).all()
    assert len(translate(model, source, beam=2)) == 2


@pytest.mark.parametrize(
    "parts, words",
    [
        ({"heads": 3}, ["d_model", "16", "heads=3"]),
        ({"cross_attention": "hard"}, ["cross_attention", "'hard'", "softmax"]),
        ({"feature_map": "favor"}, ["m:", "favor", "none"]),
        ({"feature_map": "favor", "m": 0}, ["m:", ">= 1", "0"]),
        ({"feature_map": "dpfp"}, ["nu:", "dpfp", "none"]),
        ({"feature_map": "relu"}, ["feature_map", "'relu'", "elu"]),
        ({"update_rule": "add"}, ["update_rule", "'add'", "delta"]),
        ({"attention_normalization": "both"}, ["attention_normalization", "'both'"]),
        ({"m": 4}, ["m:", "favor", "4"]),
        ({"encoder_layers": 0}, ["encoder_layers", ">= 1", "0"]),
    ],
)
def test_parts_that_make_no_model_are_named(parts, words):
    with pytest.raises(ValueError) as error:
        tiny(**parts)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    "asked, word", [({"full_context_alignment": True}, "full_context"), ({"alignment_layer": 1}, "cross_attention")]
)
def test_what_only_attention_weights_could_answer_is_refused(asked, word):
    model = tiny()
    with pytest.raises(ValueError, match=word):
        model.decoder(batch(sentences([3])), model.encoder(batch(sentences([3]))), **asked)
