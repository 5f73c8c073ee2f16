"""The callback on the real Trainer: every step is a version, and a resumed training goes on with the chain."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import weightwire as ww
from conftest import tiny_model
from weightwire._background_read import BackgroundRead

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def trainer_for(model, bucket, folder, steps, **options):
    from weightwire.integrations.transformers import PublishCallback

    tokens = torch.randint(0, 32, (16, 12), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=2,
        save_strategy="steps",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    callback = PublishCallback(bucket, dtype=torch.bfloat16, **options)
    return transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback])


def assert_published(bucket, model, version=None):
    loaded = ww.load(bucket, version=version, framework="torch")
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    assert sorted(loaded) == sorted(expected)
    for name, tensor in expected.items():
        assert torch.equal(loaded[name].view(torch.int16), tensor.view(torch.int16)), name


def test_every_step_is_a_version_and_the_trainers_log_tells(bucket, tmp_path):
    model = tiny_model()
    trainer = trainer_for(model, bucket, tmp_path / "out", steps=4)
    trainer.train()
    assert_published(bucket, model)
    assert_published(bucket, tiny_model(), version=0)
    assert_published(bucket, model, version=4)
    logged = [entry for entry in trainer.state.log_history if "weightwire/version" in entry]
    assert [entry["weightwire/version"] for entry in logged][:4] == [1, 2, 3, 4]
    # The first version was sent as an anchor, and is not counted.
    assert [entry["weightwire/deltas"] for entry in logged][:4] == [1, 1, 1, 1]
    assert all(0 < entry["weightwire/changed_ratio"] <= 1 for entry in logged[:4])
    assert all(entry["weightwire/delta_bytes"] > 0 for entry in logged[1:4])


class SwapsAverages(transformers.TrainerCallback):
    """Evaluates other weights than those that are trained, as moving averages are, and puts them back."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate = True

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        for parameter in model.parameters():
            parameter.data.neg_().neg_()


@pytest.mark.parametrize("swaps", [False, True], ids=["plain", "while others change them"])
def test_weights_are_read_while_the_trainer_computes(bucket, tmp_path, swaps, weightwire_command, monkeypatch):
    read = []
    start = BackgroundRead.start
    monkeypatch.setattr(BackgroundRead, "start", lambda self, function: (read.append(1), start(self, function))[1])
    model = tiny_model()
    trainer = trainer_for(model, bucket, tmp_path / "out", steps=6, background=True)
    trainer.args.save_strategy = "no"
    if swaps:
        trainer.eval_dataset = trainer.train_dataset
        trainer.callback_handler.callbacks.insert(0, SwapsAverages())
    trainer.train()
    assert_published(bucket, model)
    assert_published(bucket, model, version=6)
    logged = [entry for entry in trainer.state.log_history if "weightwire/version" in entry]
    assert logged[-1]["weightwire/version"] == 6
    # The last one is waited for at once, as all are where an evaluation follows.
    assert len(read) == (0 if swaps else 5)
    subprocess.run([weightwire_command, "verify", bucket], check=True)


def test_every_nth_step_is_a_version_when_asked_for(bucket, tmp_path):
    model = tiny_model()
    trainer_for(model, bucket, tmp_path / "out", steps=4, every_steps=2).train()
    assert_published(bucket, model, version=2)
    with pytest.raises(ww.NotFoundError):
        ww.load(bucket, version=3)


def test_the_weights_of_the_last_step_are_published_whatever_its_number(bucket, tmp_path):
    model = tiny_model()
    trainer_for(model, bucket, tmp_path / "out", steps=3, every_steps=2).train()
    assert_published(bucket, model, version=2)


def test_a_resumed_training_goes_on_with_the_chain(bucket, tmp_path):
    trainer_for(tiny_model(), bucket, tmp_path / "out", steps=3).train()
    model = tiny_model()
    # From the checkpoint of step 2, while the run is at step 3 already: steps may go back, versions never do.
    trainer_for(model, bucket, tmp_path / "out", steps=4).train(
        resume_from_checkpoint=str(tmp_path / "out/checkpoint-2")
    )
    assert_published(bucket, model)
    assert_published(bucket, model, version=6)


def log_of(callback, model, change):
    """What is logged of a step that changes all that `change` touches."""
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    callback.on_train_begin(None, state, control, model=model)
    callback.on_log(None, state, control, logs={})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if change(name):
                parameter += 1
    state.global_step = 1
    callback.on_step_end(None, state, control)
    logs = {}
    callback.on_log(None, state, control, logs=logs)
    callback.on_train_end(None, state, control)
    return logs


def test_the_share_that_changed_is_of_what_is_published(bucket, tmp_path):
    peft = pytest.importorskip("peft")
    from weightwire.integrations.transformers import PublishCallback

    tied = log_of(PublishCallback(bucket), tiny_model(), lambda name: True)
    assert (tied["weightwire/version"], tied["weightwire/changed_ratio"]) == (1, 1.0)
    adapted = peft.get_peft_model(tiny_model(), peft.LoraConfig(r=4, target_modules=["q_proj"]))
    adapter = log_of(PublishCallback(tmp_path / "adapter"), adapted, lambda name: "lora_" in name)
    assert (adapter["weightwire/version"], adapter["weightwire/changed_ratio"]) == (1, 1.0)


def test_a_training_that_broke_off_does_not_keep_the_next_from_publishing(bucket, tmp_path):
    from weightwire.integrations.transformers import PublishCallback

    model = tiny_model()
    callback = PublishCallback(bucket, state_dir=tmp_path / "state", dtype=torch.bfloat16)
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    callback.on_train_begin(None, state, control, model=model)
    first = callback.publisher  # then the training raises: nobody is told of its end
    log_of(callback, model, lambda name: True)
    assert first.status.version == 0
    assert_published(bucket, model, version=1)


def tiny_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<eos>": 1, **{str(number): number for number in range(2, 32)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def test_grpo_publishes_every_step_with_its_tokenizer(bucket, tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from weightwire.integrations.transformers import PublishCallback

    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=6,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    model = tiny_model()
    trainer = trl.GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [float(len(set(text.split()))) for text in completions],
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["2 3 4", "5 6 7", "8 9 10", "11 12 13"]}),
        processing_class=tiny_tokenizer(),
        callbacks=[PublishCallback(bucket, dtype=torch.bfloat16)],
    )
    trainer.train()
    assert_published(bucket, model, version=2)
    for manifest in (bucket / "anchors").rglob("anchor.json"):
        loaded = transformers.AutoTokenizer.from_pretrained(manifest.parent)
        assert loaded("2 3 4").input_ids == [2, 3, 4]


def train_as_a_rank():
    """What each process of the test below does."""
    bucket, folder = Path(sys.argv[1]), sys.argv[2]
    model = tiny_model()
    trainer = trainer_for(model, bucket, folder, steps=3, rank_timeout=60)
    trainer.train()
    if trainer.is_world_process_zero():
        assert_published(bucket, model, version=3)
        # What all ranks sent, each version once, however late it was known.
        logged = [entry for entry in trainer.state.log_history if "weightwire/version" in entry]
        versions = [entry["weightwire/version"] for entry in logged]
        assert versions == sorted(set(versions)) and versions[-1] == 3
        record = json.loads((bucket / "versions" / "00000000000000000003.json").read_text())
        assert sum(entry.get("weightwire/delta_bytes", 0) for entry in logged) == int(record["total_delta_bytes"])


def test_all_ranks_of_a_trainer_publish_together(bucket, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [__file__, str(bucket), str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    record = json.loads((bucket / "versions" / "00000000000000000003.json").read_text())
    assert len(record["delta"]["parts"]) == 2


if __name__ == "__main__":
    train_as_a_rank()
