"""Uses of the public interface as a type checker sees them: checked by pyright, strict, and never run."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np
import torch

import graft


def packages(net: torch.nn.Module, x: torch.Tensor) -> None:
    assert_type(graft.export(net, (x,), path="net.pte", options=graft.ExportOptions(plan_threads=1)), Path)
    token, arena, states = graft.CancelToken(), graft.Arena(), graft.States()
    options = graft.LoadOptions(max_plans=8, arena=arena, states=states)
    model = graft.load("net.pte", threads=2, tensors={"w": np.zeros(3)}, options=options)
    assert_type(model, graft.Model)
    assert_type(model.methods["forward"], graft.Method)
    assert_type(model.forward, graft.Method)
    timings: list[graft.Timing] = []
    model(x, cancel=token, profile=timings, timeout=1.0)
    assert_type(timings[0].start_ns, int)
    token.cancel()
    assert_type(token.cancelled, bool)
    assert_type(arena.bytes, int)
    assert_type(model.counters()["runs"], int)
    assert_type(model.fork(), graft.Model)
    assert_type(model.forward.submit(x), graft.Submitted)
    assert_type(model.forward.submit(x).done(), bool)
    found = graft.compare(model, net, (x,), atol=1e-6)
    assert_type(found, graft.Comparison)
    assert_type(found.equal, bool)
    if found.first is not None:
        assert_type(found.first.node, str)
    graft.register_op("mine.op.default", model)
    graft.load_ops(Path("libops.so"))
    assert_type(graft.version(), str)
    for name, description, total, free in graft.devices():
        print(name.upper(), description.upper(), total + free)


def many(model: graft.Model, x: torch.Tensor) -> None:
    with graft.Pipeline([model, model.fork()], workers=2) as pipeline:
        print(pipeline.submit(0, x).result(), pipeline.counters()["waiting"] + 1)
    stage = graft.FlowStage(function=abs, inputs=["x"], outputs={"y": (torch.float32, (None, 3))})
    with graft.Flow(inputs=["x"], stages={"a": model, "b": stage}, connections={}, outputs=["b.y"]) as flow:
        assert_type(flow.submit(x), graft.Submitted)


def memory() -> None:
    for entry in graft.models():
        assert_type(entry, graft.ModelInfo)
        assert_type(entry.constant_bytes, int)
        graft.unload(entry.id)
    assert_type(graft.pack("net.pte"), graft.PackedInfo)


def adapters(model: graft.Model, x: torch.Tensor) -> None:
    options = graft.LoadOptions(max_adapter_rank=16)
    other = graft.load("net.pte", adapters={"a": Path("folder")}, options=options)
    graft.load_adapter(other, "b", "b.gguf")
    other(x, adapter="a")
    model.forward(x, adapter=["a", None])
    assert_type(other.adapters, graft.Adapters)
    assert_type(list(other.adapters), list[str])
    assert_type(other.adapters.rank("a"), int)
    generator = graft.TextGenerator("llm.pte", max_adapter_rank=8, adapters={"a": "folder"})
    print(generator.generate("A", adapter="a").text, generator.generate_batch(["A", "B"], adapter=["a", None])[0].text)
    batch = graft.BatchGenerator("llm.pte", adapters={"a": "folder"})
    assert_type(batch.submit("A", adapter="a"), int)
    graft.unload_adapter(batch, "a")


def text(model: torch.nn.Module) -> None:
    assert_type(graft.export_llm("folder", "llm.pte", quantize={"*": "q4_k"}), Path)
    generator = graft.TextGenerator("llm.pte", rows=2)
    assert_type(generator.generate("Once", max_new_tokens=3).text, str)
    content = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
    assert_type(generator.generate("What is this?", images=["cat.png", graft.load_image("cat.png")]).text, str)
    generator.generate([{"role": "user", "content": content}], images=[Path("cat.png")])
    batch = graft.BatchGenerator("llm.pte")
    request = batch.submit([{"role": "user", "content": "Hi"}], temperature=0.5)
    while batch.step():
        pass
    form = graft.Grammar.json_schema({"type": "integer"}, batch.grammar_vocabulary)
    assert_type(form.mask(), graft.TokenMask)
    batch.submit("A", mask=graft.Grammar.lark("start: A", graft.GrammarVocabulary([b"a"], [0])).mask())
    if (result := batch.take(request)) is not None:
        assert_type(result.tokens, list[int])
    samples, rate = graft.load_audio("speech.wav")
    assert_type(rate, int)
    transcriber = graft.Transcriber("whisper.pte")
    assert_type(transcriber(samples, sampling_rate=rate, language="en").segments[0].start, float)
    assert_type(graft.export_speaker("folder", "tts.pte"), Path)
    speaker = graft.Speaker("tts.pte", threads=1)
    assert_type(voice := speaker.voice("somebody.wav"), graft.Voice)
    graft.save_audio("out.wav", speaker("Hi", voice=voice, seed=3), speaker.sampling_rate)
    assert_type(graft.export_image_model("folder", "vit.pte"), Path)
    assert_type(graft.ImageProcessor("vit.pte").labels, list[str])
    graft.ImageProcessor("vit.pte")(graft.load_image("cat.jpg"))
    tokenizer = graft.Tokenizer.load("folder", max_vocabulary=1000)
    assert_type(tokenizer.encode("Hi"), list[int])
    assert_type(graft.Detokenizer(tokenizer).add(3), str)
    graft.compile(model, quantize="q8_0", buckets=(64, 128)).generate()
    graft.AutoModelForCausalLM.from_pretrained("folder").generate()


def delegates() -> None:
    partitioner = graft.GraftPartitioner(method="forward")
    print(partitioner.refused, graft.GraftBackend.__name__, graft.partitioner.GraftPartitioner, graft.backend.BACKEND_ID)
    print(graft.hf.export_static, graft.hf.attach, graft.hf.StaticKV, graft.hf.register_exporter)


def workers() -> None:
    predictor = graft.ray.Predictor("net.pte", inputs={"x": "column"}, threads=1)
    assert_type(predictor.rows, int)
    embedder = graft.ray.Embedder("minilm.pte", column="text", to="vector")
    print(embedder.vectors(["a"]).shape, graft.ray.Classifier("c.pte", labels=["a"]), graft.ray.Generator("llm.pte").answers(["a"]))
    print(graft.ray.embed, graft.ray.classify, graft.ray.generate, graft.ray.app(models=["llm.pte"], replicas=(1, 4)))


def errors() -> None:
    try:
        graft.load("net.pte")
    except (graft.InvalidArgument, graft.InvalidProgram, graft.Unsupported, graft.NotFound) as error:
        assert_type(str(error), str)
    except (graft.SystemError, graft.OutOfMemory) as error:
        assert_type(error.errno, int | None)
    except (graft.Busy, graft.ExecutionError, graft.Cancelled, graft.InternalError, graft.ExportError) as error:
        raise graft.Error from error
    except graft.Unavailable as error:
        assert_type(str(error), str)
