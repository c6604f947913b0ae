"""perdure.toml: what it means, what the environment adds, and one clear sentence for every mistake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from decimal import Decimal
from pathlib import Path

import pytest

from orchestration.errors import ConfigError
from orchestration.providers.settings import Api
from persistence.records.agent import AgentSettings, Grace, ReferencesEvery
from workers import config
from workers.cli import arguments
from workers.config import Config
from workers.config_file import AgentEntry
from workers.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
PROVIDER = '[providers.main]\napi = "openai-chat"\nbase_url = "http://127.0.0.1:9000/v1"\n'
AGENT = PROVIDER + '[agents.default]\nmodel = "main:m"\n'

Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str | None, environ: Mapping[str, str] | None = None, **settings: str) -> Config:
        path = tmp_path / "perdure.toml"
        if text is not None:
            path.write_text(text, encoding="utf-8")
            settings["config"] = str(path)
        return config.load(Settings.model_validate({"home": str(tmp_path), **settings}), environ or {})

    return load


def test_every_setting_of_an_agent_can_be_written_in_the_file() -> None:
    assert {"name", *AgentEntry.model_fields} == {f.name for f in fields(AgentSettings)}


def test_what_the_file_leaves_out_has_the_defaults_of_the_record(load: Load) -> None:
    loaded = load(AGENT)

    assert loaded.agents["default"] == AgentSettings(name="default", model="main:m")


def test_a_whole_file_is_read(load: Load) -> None:
    loaded = load(
        AGENT
        + """
        fallbacks = ["other:n"]
        tools = ["files", "my_tools:send_mail"]
        iterations = 7
        max_cost_usd = 2
        grace = "tools"
        [providers.other]
        api = "anthropic"
        base_url = "http://127.0.0.1:9001/v1"
        api_keys = ["env:A", "literal-key"]
        quota_group = "acme"
        requests_per_minute = 60
        tokens_per_minute = 100_000
        extra_body = { temperature = 0.5 }
        [prices."m"]
        input_usd_per_million = 0.1
        output_usd_per_million = 2
        [models."m"]
        context_window = 8_000
        """
    )

    agent, other, price = loaded.agents["default"], loaded.providers["other"], loaded.prices["m"]
    assert (agent.fallbacks, agent.tools) == (("other:n",), ("files", "my_tools:send_mail"))
    assert (agent.iterations, agent.max_cost_usd, agent.grace) == (7, 2.0, Grace.TOOLS)
    assert (other.api, other.base_url) == (Api.ANTHROPIC, "http://127.0.0.1:9001")
    assert (other.quota_group, other.requests_per_minute, other.tokens_per_minute) == ("acme", 60, 100_000)
    assert other.extra_body == {"temperature": 0.5}
    assert (price.input_usd_per_million, price.output_usd_per_million) == (Decimal("0.1"), Decimal(2))
    assert loaded.models["m"].context_window == 8_000


def test_the_example_file_can_be_used_as_it_is(load: Load) -> None:
    loaded = load((REPOSITORY / "perdure.example.toml").read_text(encoding="utf-8"))

    assert config.resolve_agent(loaded, "default").model.partition(":")[0] in loaded.providers


def test_the_example_file_explains_every_setting_of_an_agent() -> None:
    lines = (REPOSITORY / "perdure.example.toml").read_text(encoding="utf-8").splitlines()

    explained = {line.removeprefix("# ").partition(" = ")[0] for line in lines}

    assert set(AgentEntry.model_fields) <= explained


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[agents.default\n", "is not valid TOML"),
        ("agent = 1\n", "agent is not a setting: did you mean agents?"),
        (AGENT + "iteration = 3\n", "agents.default.iteration is not a setting: did you mean iterations?"),
        (AGENT + 'iterations = "3"\n', 'agents.default.iterations = "3" cannot be used: it should be a whole number'),
        (AGENT + "iterations = true\n", "agents.default.iterations = true cannot be used"),
        (AGENT + "iterations = 0\n", "it should be greater than or equal to 1"),
        (AGENT + "deadline_s = inf\n", "agents.default.deadline_s"),
        (AGENT + 'grace = "perhaps"\n', "it should be 'answer', 'tools' or 'off'"),
        (AGENT + 'tools = "files"\n', "agents.default.tools"),
        (AGENT + "deadline_s = 2026-01-01\n", "agents.default.deadline_s"),
        (AGENT + "workspace = 5\n", "agents.default.workspace = 5 cannot be used: it should be a text"),
        (
            AGENT + 'context = ["file:/etc/passwd"]\n',
            "agents.default.context holds 'file:/etc/passwd': '/etc/passwd' is not inside",
        ),
        (AGENT + 'context = ["file:a/../../b"]\n', "may not contain '..'"),
        (AGENT + 'context = ["file:"]\n', 'names no file: write it as "file:notes.md"'),
        (AGENT + 'context = ["date:Mars/Base"]\n', "There is no time zone 'Mars/Base'"),
        (AGENT + 'context = ["my module:f"]\n', 'which is no source: write "date"'),
        (AGENT + 'context = "date"\n', "agents.default.context"),
        (AGENT + "context_chars = 1\n", "agents.default.context_chars = 1 cannot be used"),
        ("[agents.default]\n", "[agents.default] lacks model"),
        ('[agents.default]\nmodel = "m"\n', "names no provider: write it as provider:model"),
        ('[agents.default]\nmodel = "x:m"\n', "no provider 'x' is configured: add [providers.x]"),
        (AGENT + 'fallbacks = ["x:m"]\n', "no provider 'x' is configured"),
        ('[providers.main]\napi = "openai"\n', "it should be 'openai-chat', 'openai-responses' or 'anthropic'"),
        ("[providers.main]\n", '[providers.main] lacks api: add api = "openai-chat"'),
        ('[providers."a:b"]\napi = "anthropic"\n', "write one word without a colon"),
        (PROVIDER + 'api_key = "hunter2"\n', "providers.main.api_key is not a setting: did you mean api_keys?"),
        (PROVIDER + "api_keys = ['env:']\n", 'write "env:NAME_OF_THE_VARIABLE"'),
        (PROVIDER + "api_keys = ['command:']\n", 'write "command:PROGRAM ARGUMENT"'),
        (PROVIDER + "api_keys = ['command: ']\n", 'write "command:PROGRAM ARGUMENT"'),
        (PROVIDER + "api_keys = ['command:get \"a key']\n", "open quotation mark"),
        (PROVIDER + "api_keys = ['entry-point:']\n", 'write "entry-point:NAME"'),
        (PROVIDER + "api_keys = ['$A']\n", 'a name behind a "$": write "env:NAME_OF_THE_VARIABLE"'),
        (
            PROVIDER + "api_keys = ['']\n",
            "providers.main.api_keys.0 cannot be used: it should have at least 1 character",
        ),
        (PROVIDER + "quota_group = ''\n", "providers.main.quota_group"),
        (
            PROVIDER + "call_id_chars = 3\n",
            "providers.main.call_id_chars = 3 cannot be used: it should be greater than",
        ),
        (PROVIDER + "takes_schema = 'no'\n", 'takes_schema = "no" cannot be used: it should be true or false.'),
        (PROVIDER + "extra_body = { model = 'x' }\n", "extra_body of [providers.main] may not set model"),
        (
            PROVIDER + "extra_body = { background = true }\n",
            'which api = "openai-responses" has and "openai-chat" has not',
        ),
        (AGENT + f"references = {['main:a'] * 9}\n", "it should have at most 8 items, not 9."),
        ('[agents.default]\nmodel = ":m"\n', "names no provider: write it as provider:model"),
        (PROVIDER + "api_keys = ['env:A', 'env:A']\n", "the same key twice"),
        (PROVIDER + "key_strategy = 'random'\n", "'order', 'round_robin' or 'least_used'"),
        (PROVIDER + "requests_per_minute = 0\n", "requests_per_minute = 0 cannot be used"),
        (
            PROVIDER
            + "quota_group = 'a'\nrequests_per_minute = 5\n"
            + PROVIDER.replace("main", "other")
            + "quota_group = 'a'\nrequests_per_minute = 6\n",
            "requests_per_minute is 5 for one and 6 for the other: write it once",
        ),
        (PROVIDER + "api_keys = 'hunter2'\n", "providers.main.api_keys cannot be used"),
        ('[providers.m]\napi = "anthropic"\nbase_url = "hunter2"\n', "providers.m.base_url is not an address"),
        ('[prices."m"]\ninput_usd_per_million = -1\n', "prices.m.input_usd_per_million"),
        ('[models."m"]\ncontext_window = 0\n', "models.m.context_window"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(text: str, told: str, load: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(text)

    sentence = str(error.value)
    assert told in sentence
    assert sentence.startswith(str(tmp_path / "perdure.toml"))
    assert not sentence.endswith("?.")
    assert "hunter2" not in sentence
    assert "\n" not in sentence


def test_a_file_that_is_no_text_or_no_file_is_told_so(load: Load, tmp_path: Path) -> None:
    path = tmp_path / "perdure.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(None, config=str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        load(None, config=str(tmp_path))


def test_a_file_that_was_asked_for_must_be_there(load: Load, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load(None, config=str(tmp_path / "absent.toml"))


@pytest.mark.parametrize(
    ("environ", "settings", "model", "base_url"),
    [
        ({"OPENAI_API_KEY": "k"}, {}, "openai:gpt-5-mini", "https://api.openai.com/v1"),
        ({"ANTHROPIC_API_KEY": "k"}, {}, "anthropic:claude-haiku-4-5", "https://api.anthropic.com"),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://h/v1"}, {}, "openai:gpt-5-mini", "http://h/v1"),
        ({"ANTHROPIC_API_KEY": "k"}, {"model": "claude-x"}, "anthropic:claude-x", "https://api.anthropic.com"),
        ({"OPENAI_API_KEY": "k"}, {"model": "openai:o9"}, "openai:o9", "https://api.openai.com/v1"),
        ({}, {"model": "llama3.1:8b", "base_url": "http://h:1/v1"}, "main:llama3.1:8b", "http://h:1/v1"),
        ({"OPENAI_API_KEY": "k"}, {"model": "qwen", "base_url": "http://h:1/v1"}, "main:qwen", "http://h:1/v1"),
    ],
)
def test_without_a_file_the_environment_makes_the_default_agent(
    environ: dict[str, str],
    settings: dict[str, str],
    model: str,
    base_url: str,
    load: Load,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    loaded = load(None, environ, **settings)

    agent = config.resolve_agent(loaded, "default")
    assert agent.model == model
    assert loaded.providers[model.partition(":")[0]].base_url == base_url


def test_a_key_is_read_at_the_moment_of_use_and_is_in_no_repr(load: Load) -> None:
    loaded = load(PROVIDER + 'api_keys = ["env:KEY_OF_MAIN", "hunter2"]\n')
    provider = loaded.providers["main"]

    assert provider.keys({"KEY_OF_MAIN": "s3cret"}) == ("s3cret", "hunter2")
    assert "hunter2" not in repr(loaded)
    with pytest.raises(ConfigError, match="KEY_OF_MAIN, which is not set"):
        provider.keys({"KEY_OF_MAIN": " "})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"model": "qwen"}, "PERDURE_BASE_URL"),
        ({"base_url": "http://h/v1"}, "PERDURE_MODEL is not"),
    ],
)
def test_half_a_model_in_the_environment_is_told_so(
    settings: dict[str, str], told: str, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=told):
        load(None, {}, **settings)


def test_with_no_model_at_all_the_sentence_says_how_to_get_one(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load(None)

    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        config.resolve_agent(loaded, "default")


def test_an_unknown_agent_is_answered_with_the_known_ones(load: Load) -> None:
    loaded = load(AGENT + '[agents.writer]\nmodel = "main:m"\n')

    with pytest.raises(ConfigError, match="Known are: default, writer"):
        config.resolve_agent(loaded, "wirter")


def test_settings_of_one_turn_are_read_by_the_type_of_the_setting(load: Load) -> None:
    loaded = load(AGENT + "max_cost_usd = 5.0\n")

    agent = config.resolve_agent(
        loaded,
        "default",
        {
            "iterations": "1_000",
            "deadline_s": "0.5",
            "max_cost_usd": "none",
            "tools": "files, my_tools:send_mail",
            "grace": "off",
            "system_prompt": "90",
            "workspace": "/srv/w",
        },
    )

    assert (agent.iterations, agent.deadline_s, agent.max_cost_usd) == (1000, 0.5, None)
    assert (agent.tools, agent.grace) == (("files", "my_tools:send_mail"), Grace.OFF)
    assert (agent.system_prompt, agent.workspace) == ("90", "/srv/w")
    assert loaded.agents["default"].iterations == 90


def test_a_setting_that_is_no_unicode_is_cleaned_as_all_text_is(load: Load) -> None:
    agent = config.resolve_agent(load(AGENT), "default", {"system_prompt": "a\x00b\ud800", "tools": "t:\udcff"})

    assert (agent.system_prompt, agent.tools) == ("a\ufffdb\ufffd", ("t:\ufffd",))


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("iteration", "3", "did you mean iterations?"),
        ("name", "x", "no such setting"),
        ("context", "date,file:../x", "may not contain '..'"),
        ("iterations", "many", 'iterations = "many" cannot be used'),
        ("iterations", "-1", "greater than or equal to 1"),
        ("iterations", "none", 'iterations = "none" cannot be used'),
        ("deadline_s", "NaN", "deadline_s"),
        ("grace", "perhaps", "'answer', 'tools' or 'off'"),
        ("model", "m", "write it as provider:model"),
        ("model", "", "write it as provider:model"),
        ("fallbacks", "x:m", "no provider 'x' is configured"),
    ],
)
def test_a_wrong_setting_of_one_turn_is_one_sentence(key: str, text: str, told: str, load: Load) -> None:
    loaded = load(AGENT)

    with pytest.raises(ConfigError) as error:
        config.resolve_agent(loaded, "default", {key: text})

    assert told in str(error.value)
    assert str(error.value).startswith("--set")


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("output_schema", "{", "output_schema=@{path} is no JSON: write the schema itself"),
        ("output_schema", '{"type": "array"}', "the output_schema of the agent 'default' is not of type \"object\""),
        ("iterations", "many", 'iterations = "many" cannot be used'),
        ("grace", "perhaps", "'answer', 'tools' or 'off'"),
        ("model", "m", "write it as provider:model"),
        ("context", "date,file:../x", "may not contain '..'"),
    ],
)
def test_a_wrong_setting_from_a_file_is_told_with_its_key_and_its_file(
    tmp_path: Path, key: str, text: str, told: str, load: Load
) -> None:
    path = tmp_path / "given.txt"
    path.write_text(text)

    with pytest.raises(ConfigError) as error:
        config.resolve_agent(load(AGENT), "default", arguments.settings([f"{key}=@{path}"]))

    assert told.format(path=path) in str(error.value)
    assert str(error.value).startswith(f"--set {key}=@{path}")


PRICE = '[prices."{}"]\ninput_usd_per_million = 1\noutput_usd_per_million = 2\n'


def test_a_capped_cost_needs_a_price_for_every_model_of_the_chain(load: Load) -> None:
    text = AGENT + 'fallbacks = ["main:n"]\n'
    for known in ("", PRICE.format("m")):
        loaded = load(text + known)
        with pytest.raises(ConfigError, match=r'no price of \'main:[mn]\' is known.*add \[prices\."[mn]"\]'):
            config.check_prices(loaded, loaded.agents["default"])

    loaded = load(text + PRICE.format("m") + PRICE.format("main:n"))
    config.check_prices(loaded, loaded.agents["default"])


def test_the_models_of_the_public_providers_have_prices(load: Load) -> None:
    loaded = load('[providers.openai]\napi = "openai-chat"\n[agents.default]\nmodel = "openai:gpt-5-mini"\n')

    config.check_prices(loaded, loaded.agents["default"])


def test_the_limits_of_a_model_are_those_of_every_agent_that_does_not_say_its_own(load: Load) -> None:
    loaded = load(AGENT + '[models."m"]\ncontext_window = 32_000\nmax_output_tokens = 4_000\n')

    plain = config.resolve_agent(loaded, "default")
    own = config.resolve_agent(loaded, "default", {"context_window": "8_000", "max_output_tokens": "9_000"})

    assert (plain.context_window, plain.max_output_tokens) == (32_000, 4_000)
    assert (own.context_window, own.max_output_tokens) == (8_000, 4_000)


def test_limits_may_be_given_for_a_model_of_one_provider_and_follow_the_model_that_a_turn_names(load: Load) -> None:
    models = '[models."main:m"]\ncontext_window = 1_000\n[models."n"]\ncontext_window = 2_000\n'
    loaded = load(AGENT + models)

    assert config.resolve_agent(loaded, "default").context_window == 1_000
    assert config.resolve_agent(loaded, "default", {"model": "main:n"}).context_window == 2_000


def test_a_model_that_could_say_more_than_usual_is_not_asked_to(load: Load) -> None:
    loaded = load(AGENT + '[models."m"]\nmax_output_tokens = 64_000\n')

    assert config.resolve_agent(loaded, "default").max_output_tokens is None


def test_the_window_of_the_model_that_summarises_is_its_own(load: Load) -> None:
    loaded = load(
        AGENT + 'context_window = 128_000\ncompress_model = "main:small"\n[models."small"]\ncontext_window = 8_000\n'
    )

    agent = config.resolve_agent(loaded, "default")

    assert (agent.context_window, agent.compress_window) == (128_000, 8_000)


def test_the_model_that_summarises_needs_a_provider_too(load: Load) -> None:
    with pytest.raises(ConfigError, match="no provider 'elsewhere' is configured"):
        load(AGENT + 'compress_model = "elsewhere:small"\n')


def test_references_are_read_as_other_models_are(load: Load) -> None:
    agent = load(AGENT + 'references = ["main:small", "main:small"]\nreferences_every = "iteration"\n').agents[
        "default"
    ]

    assert (agent.references, agent.references_every) == (("main:small",) * 2, ReferencesEvery.ITERATION)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('references = ["elsewhere:small"]', "no provider 'elsewhere'"),
        ('references = ["small"]', "names no provider"),
        (f"references = {['main:small'] * 9}", "references"),
        ('references_every = "hour"', "references_every"),
        ("references_deadline_s = 0", "references_deadline_s"),
    ],
)
def test_references_that_cannot_be_asked_are_refused(load: Load, wrong: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(AGENT + wrong + "\n")


def test_the_providers_of_a_quota_group_share_the_limits_that_one_of_them_states(load: Load) -> None:
    group = "quota_group = 'acme'\n"
    loaded = load(
        f"{PROVIDER}{group}requests_per_minute = 60\n"
        f"{PROVIDER.replace('main', 'second')}{group}tokens_per_minute = 9000\n"
        f"{PROVIDER.replace('main', 'third')}tokens_per_minute = 7\n"
    )

    limits = {n: (p.requests_per_minute, p.tokens_per_minute) for n, p in loaded.providers.items()}
    assert limits == {"main": (60, 9000), "second": (60, 9000), "third": (None, 7)}
