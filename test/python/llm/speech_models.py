"""Small models of speech with random weights, as folders that transformers saves: Whisper with a tokenizer of bytes, and
Moonshine."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers

LANGUAGES = ("en", "de", "fr")
TASKS = ("translate", "transcribe")
RATE = 16000


def tokens(seconds: int) -> dict[str, int]:
    """The vocabulary: 256 bytes, what guides the decoder, time stamps every 0.02 seconds."""
    names = [*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    names += ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES)]
    names += [*(f"<|{task}|>" for task in TASKS), "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    names += [f"<|{i * 0.02:.2f}|>" for i in range(50 * seconds + 1)]
    return {name: i for i, name in enumerate(names)}


def save_tokenizer(folder: Path, ids: dict[str, int]) -> None:
    model = tokenizers.models.BPE(vocab={name: i for name, i in ids.items() if i < 256}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    # As in Whisper's files time stamps are no special tokens.
    for name in list(ids)[256:]:
        special = ids[name] <= ids["<|notimestamps|>"]
        tokenizer.add_tokens([tokenizers.AddedToken(name, special=special, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab() == ids


def generation_config(ids: dict[str, int], context: int, multilingual: bool) -> transformers.GenerationConfig:
    config = transformers.GenerationConfig(
        eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"],
        bos_token_id=ids["<|endoftext|>"],
        decoder_start_token_id=ids["<|startoftranscript|>"],
        max_length=context,
    )
    config.no_timestamps_token_id = ids["<|notimestamps|>"]
    config.max_initial_timestamp_index = 10
    config.is_multilingual = multilingual
    guides = [ids[name] for name in ("<|startoftranscript|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>")]
    guides += [ids[f"<|{name}|>"] for name in (*LANGUAGES, *TASKS)]
    config.suppress_tokens = sorted([ids["!"], ids["#"], *guides])
    config.begin_suppress_tokens = [ids["Ġ"], ids["<|endoftext|>"]]
    config.prev_sot_token_id = ids["<|startofprev|>"]
    if multilingual:
        config.lang_to_id = {f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES}
        config.task_to_id = {task: ids[f"<|{task}|>"] for task in TASKS}
    return config


def save_whisper(folder: Path, *, seconds: int = 1, context: int = 64, multilingual: bool = True, seed: int = 0) -> Path:
    """seconds: of a window."""
    ids = tokens(seconds)
    config = transformers.WhisperConfig(
        vocab_size=len(ids),
        num_mel_bins=80,
        d_model=48,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=50 * seconds,
        max_target_positions=context,
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"],
        decoder_start_token_id=ids["<|startoftranscript|>"],
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(seed)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif "embed" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.5)
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter[0].numel() ** 0.5)
        # Texts of random weights hardly end: the token that ends them is made more likely, and less likely, than others.
        model.model.decoder.embed_tokens.weight[ids["<|endoftext|>"]] *= 3
    model.generation_config = generation_config(ids, context, multilingual)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    save_tokenizer(folder, ids)
    extractor(seconds).save_pretrained(folder)
    return folder


def save_moonshine(folder: Path, *, context: int = 24, normalize: bool = False, seed: int = 0) -> Path:
    """context: the most tokens of a text, at 6.5 per second of sound."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    ids = {name: i for i, name in enumerate(["<unk>", "<s>", "</s>", *letters])}
    config = transformers.MoonshineConfig(
        vocab_size=len(ids),
        hidden_size=48,
        intermediate_size=64,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
        pad_head_dim_to_multiple_of=8,
        max_position_embeddings=context,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.9},
    )
    torch.manual_seed(seed)
    model = transformers.MoonshineForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif "embed" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.5)
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter[0].numel() ** 0.5)
        model.model.decoder.embed_tokens.weight[ids["</s>"]] *= 1.5
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    model = tokenizers.models.BPE(vocab=ids, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(do_normalize=normalize, return_attention_mask=True).save_pretrained(folder)
    return folder


def extractor(seconds: int) -> transformers.WhisperFeatureExtractor:
    return transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=seconds)


def sound(seconds: float, seed: int = 0, rate: int = RATE) -> np.ndarray:
    """[n] in f32: some tones that come and go, and noise."""
    random = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    out = random.normal(0, 0.003, time.shape)
    for _ in range(6):
        start, width, hertz = random.uniform(0, seconds), random.uniform(0.1, 1), random.uniform(80, 3500)
        out += 0.15 * np.exp(-(((time - start) / width) ** 2)) * np.sin(2 * np.pi * hertz * time)
    return out.astype(np.float32)


def wav(seconds: float, seed: int = 0, rate: int = RATE) -> bytes:
    """A file of that sound in 16 bits."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(sound(seconds, seed, rate) * 32767).astype("<i2").tobytes())
    return out.getvalue()
