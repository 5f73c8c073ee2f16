"""TRL's real asynchronous trainers publish, and a real server that follows makes their rollouts."""

import json
import os
import subprocess
import sys

import pytest
import torch
import transformers
import weightwire as ww
from conftest import ONE_PROCESS, ROOT, make_model
from tokenizers import Tokenizer, models, pre_tokenizers
from weightwire.integrations.trl import WeightTransfer

sys.path.insert(0, str(ROOT / "demo"))
import trl_on_cpu

trl_on_cpu.install()
from datasets import Dataset  # noqa: E402
from trl.chat_template_utils import qwen3_chat_template  # noqa: E402
from trl.experimental.async_distillation import AsyncDistillationConfig, AsyncDistillationTrainer  # noqa: E402
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer  # noqa: E402
from weightwire.integrations.trl._rollouts import version_of  # noqa: E402

WORDS = 900
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def share_of_high_words(completion_ids, **kwargs):
    """A reward that differs between rollouts, so that there is something to learn."""
    return [sum(token > 500 for token in tokens) / len(tokens) for tokens in completion_ids]


def save_first(folder):
    """A model in fp32 with a tokenizer of as many words as it has."""
    torch.manual_seed(0)
    make_model(False, {}).save_pretrained(folder)
    words = {word: i for i, word in enumerate([*SPECIAL, *(f"w{i}" for i in range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = qwen3_chat_template
    tokenizer.save_pretrained(folder)
    return folder


class Training:
    """A run, and trainers of it, one after the other."""

    def __init__(self, folder):
        self.first = save_first(folder / "first")
        self.bucket = folder / "bucket"
        self.mirror = folder / "mirror"
        self._folder = folder
        self.publish(0.0)
        with ww.Follower(self.bucket, self.mirror) as follower:
            follower.poll().apply()

    def publish(self, more):
        """The first weights, each of them by so much more."""
        model = transformers.AutoModelForCausalLM.from_pretrained(self.first)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += more
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.first)
        with ww.Publisher(self.bucket, model, dtype=torch.bfloat16, tokenizer=tokenizer) as publisher:
            publisher.publish(step=0)

    def trainer(self, steps, server=None, bucket=None, attach=True, background=False, **options):
        return self._make(
            AsyncGRPOTrainer,
            self._config(AsyncGRPOConfig, steps, server, num_generations=4, **options),
            bucket,
            attach,
            background,
            reward_funcs=share_of_high_words,
        )

    def distillation_trainer(self, steps, server):
        """The teacher is the same server, so it is behind, and there is something to learn."""
        teacher = {"default": f"http://127.0.0.1:{server.port}"}
        # What it takes by default needs a GPU.
        attention = {"attn_implementation": "sdpa"}
        config = self._config(
            AsyncDistillationConfig, steps, server, teacher_server_urls=teacher, model_init_kwargs=attention
        )
        return self._make(AsyncDistillationTrainer, config)

    def _config(self, kind, steps, server, **options):
        return kind(
            output_dir=str(self._folder / "out"),
            vllm_server_base_url=f"http://127.0.0.1:{server.port if server else 1}",
            max_steps=steps,
            per_device_train_batch_size=8,
            token_budget=0,
            max_inflight_tasks=8,
            queue_maxsize=8,
            max_completion_length=8,
            learning_rate=1e-3,
            dtype="float32",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **options,
        )

    def _make(self, kind, config, bucket=None, attach=True, background=False, **options):
        prompts = [[{"role": "user", "content": f"w{i} w{i + 1}"}] for i in range(8)]
        transfer = WeightTransfer(bucket or self.bucket, background=background)
        trainer = kind(
            model=str(self.first),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            weight_transfer=transfer,
            **options,
        )
        if attach:
            transfer.attach(trainer)
        return trainer


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    return Training(tmp_path_factory.mktemp("trl"))


@pytest.fixture(scope="module")
def server(training, start):
    name = ["--no-skip-tokenizer-init", "--served-model-name", str(training.first)]
    options = {"plugins": ["plain_layout"], "arguments": name, **ONE_PROCESS}
    return start(training.mirror, training.bucket, **options).wait_until_up()


def tags_of(trainer):
    """The versions of all rollouts that the trainer takes, as they come."""
    tags = []
    take = trainer.rollout_queue.get

    def noting(*args, **kwargs):
        sample = take(*args, **kwargs)
        tags.append(sample.model_version)
        return sample

    trainer.rollout_queue.get = noting  # the same queue as the worker has
    return tags


def assert_published(bucket, model):
    published = ww.load(bucket, framework="torch")
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    assert sorted(published) == sorted(expected)
    assert all(torch.equal(published[name], tensor) for name, tensor in expected.items())


def assert_answers_as(server, trainer, reference, checkpoint):
    """As a fresh engine with the trainer's weights does."""
    trainer.model.to(torch.bfloat16).save_pretrained(checkpoint)
    assert server.answers() == reference.answers(checkpoint, plain=True)


def newest_version(bucket):
    said = subprocess.run(
        [os.environ["WEIGHTWIRE"], "log", bucket, "--json"], check=True, capture_output=True, text=True
    ).stdout
    return json.loads(said)["newest_version"]


def test_chats_and_streams_name_their_versions(training, server):
    messages = [{"role": "user", "content": "w1 w2"}]
    model = str(training.first)
    for path, prompt in (("chat/completions", {"messages": messages}), ("completions", {"prompt": [1, 2, 3]})):
        for stream in (False, True):
            body = {"model": model, "max_tokens": 5, "min_tokens": 5, "n": 2, "stream": stream, **prompt}
            with server.request(f"/v1/{path}", body) as answer:
                assert answer.headers["weightwire-version"] == "0"
                assert answer.headers["weightwire-version-spans"] == (None if stream else "0:0-5, 0:0-5")
                answer.read()


def test_the_responses_api_names_its_versions(training, server):
    """Its stream begins with events that come before the first token; the server holds them back until then."""
    for stream in (False, True):
        body = {"model": str(training.first), "input": "w1 w2", "max_output_tokens": 5, "stream": stream}
        with server.request("/v1/responses", body) as answer:
            assert answer.headers["weightwire-version"] == "0"
            assert (answer.headers["weightwire-version-spans"] is None) == stream
            assert not stream or b"response.created" in answer.read()


def test_rollouts_carry_the_version_that_made_them(training, server):
    """The server is pinned, so that version makes every rollout, however far the trainer is."""
    server.post("/weightwire/pin", {"version": 0})
    training.publish(0.01)
    trainer = training.trainer(steps=4, server=server, max_staleness=100)
    tags = tags_of(trainer)
    trainer.train()
    assert len(tags) >= 4 * 8
    assert set(tags) == {0}
    # Version 2 is the first weights again: a trainer goes on with the chain that is there.
    assert trainer.model_version == 6
    staleness = [entry["sample/staleness_mean"] for entry in trainer.state.log_history if "reward" in entry]
    assert staleness[0] == 2
    assert staleness == sorted(staleness) and staleness[-1] > 2


def test_a_server_follows_exactly_and_staleness_is_bounded(training, server, reference):
    server.post("/weightwire/unpin", {})
    trainer = training.trainer(steps=4, server=server, max_staleness=1)
    tags = tags_of(trainer)
    trainer.train()
    assert trainer.model_version == 11
    assert max(tags) > 7
    logs = [entry for entry in trainer.state.log_history if "weightwire/version" in entry]
    assert [entry["weightwire/version"] for entry in logs][:4] == [8, 9, 10, 11]
    assert all(entry["sample/staleness_max"] <= 1 for entry in logs if "sample/staleness_max" in entry)
    assert all(entry["weightwire/delta_bytes"] > 0 and 0 < entry["weightwire/changed_ratio"] <= 1 for entry in logs[:4])

    assert_published(training.bucket, trainer.model)
    status = server.wait_for_version(11)
    assert status["last_error"] is None
    assert_answers_as(server, trainer, reference, training.first.with_name("last"))


def test_distillation_publishes_and_a_server_follows_exactly(training, server, reference):
    server.post("/weightwire/unpin", {})
    before = newest_version(training.bucket)
    trainer = training.distillation_trainer(steps=3, server=server)
    tags = tags_of(trainer)
    trainer.train()
    last = before + 4  # the first one before the first step
    assert trainer.model_version == last
    assert min(tags) > before
    logs = [entry for entry in trainer.state.log_history if "weightwire/version" in entry]
    assert [entry["weightwire/version"] for entry in logs][:3] == [before + 2, before + 3, last]
    assert all(entry["weightwire/delta_bytes"] > 0 for entry in logs[:3])

    assert_published(training.bucket, trainer.model)
    assert server.wait_for_version(last)["last_error"] is None
    assert_answers_as(server, trainer, reference, training.first.with_name("distilled"))


def test_weights_that_are_put_together_for_the_call_are_published(training, tmp_path):
    """As those of a sharded model are: gone once the next one is asked for."""
    trainer = training.trainer(steps=1, bucket=tmp_path / "bucket")
    trainer.model.register_buffer("correction", torch.arange(5.0))  # not a parameter, but in every checkpoint
    transfer = trainer.weight_transfer
    transfer.init_weight_transfer()

    def gathered():
        for name, parameter in trainer.model.named_parameters():
            whole = parameter.detach().clone()
            yield name, whole
            whole.zero_()

    transfer.send_weights(gathered())
    trainer.model.get_input_embeddings().requires_grad_(False)
    with pytest.raises(ww.InvalidArgumentError, match="frozen"):
        transfer.send_weights(gathered())
    transfer.destroy()
    assert_published(tmp_path / "bucket", trainer.model)


def test_weights_that_are_read_in_the_background_have_the_version_they_get(training, tmp_path):
    bucket = tmp_path / "bucket"
    trainer = training.trainer(steps=3, bucket=bucket, background=True)
    trainer.create_optimizer_and_scheduler(3)
    transfer = trainer.weight_transfer
    transfer.init_weight_transfer()
    for step in range(3):
        trainer.state.global_step = step
        transfer.send_weights(trainer._streaming_iter())
        transfer.resume()
        trainer.model_version += 1  # as TRL does
        assert trainer.model_version == step
        sum(parameter.sum() for parameter in trainer.model.parameters()).backward()
        sent = {name: tensor.to(torch.bfloat16) for name, tensor in trainer.model.state_dict().items()}
        trainer.optimizer.step()
    transfer.destroy()
    assert newest_version(bucket) == 2
    loaded = ww.load(bucket, framework="torch")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in sent.items())


def test_what_is_not_trained_is_published_too(training, tmp_path):
    trainer = training.trainer(steps=1, bucket=tmp_path / "bucket")
    trainer.model.get_input_embeddings().requires_grad_(False)
    transfer = trainer.weight_transfer
    transfer.init_weight_transfer()
    transfer.send_weights(trainer._streaming_iter())
    transfer.destroy()
    assert_published(tmp_path / "bucket", trainer.model)


def test_a_trainer_that_is_not_known_is_asked_for(training, tmp_path):
    trainer = training.trainer(steps=1, bucket=tmp_path / "bucket", attach=False)
    with pytest.raises(ww.InvalidArgumentError, match="attach"):
        trainer.train()


def test_a_version_header_is_read_whole_or_not_at_all():
    assert version_of({"weightwire-version": "3"}) == 3
    assert version_of({}) is None
    assert version_of({"weightwire-version": "3 and more"}) is None
    assert version_of({"weightwire-version": "9" * 5000}) is None
