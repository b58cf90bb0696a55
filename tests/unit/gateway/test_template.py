"""Chat templates."""

import json

import pytest

from outrider.rpc.config import ConfigError
from outrider.rpc.errors import InvalidArgument
from services.gateway.template import ChatTemplate

PLAIN = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
USER = [{"role": "user", "content": "hi"}]


def render(source, messages=USER, *, tools=(), thinking=True, options=None, max_num_characters=1000):
    template = ChatTemplate(source, {"bos_token": "<s>"})
    template.check_options(options or {}, thinking=thinking)
    return template.render(
        messages,
        tools=list(tools),
        thinking=thinking,
        options=options or {},
        max_num_characters=max_num_characters,
    )


def refusal(source, **arguments) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        render(source, **arguments)
    return caught.value


def test_messages_and_special_tokens_are_rendered():
    assert render(PLAIN) == "<s>[user]hi"


def test_blocks_are_trimmed_as_templates_expect():
    assert render("{% if true %}\n  {% if true %}\nx{% endif %}\n{% endif %}") == "x"


def test_json_is_not_escaped_for_html():
    assert render("{{ tools | tojson }}", tools=[{"a": "<é>'"}]) == '[{"a": "<é>\'"}]'


def test_thinking_is_passed_under_both_names():
    source = "{{ thinking }} {{ enable_thinking }}"
    assert (render(source), render(source, thinking=False)) == ("True True", "False False")


def test_an_option_that_the_template_uses_is_passed():
    assert render("{{ level | default('low') }}", options={"level": "high"}) == "high"


def test_an_option_that_the_template_does_not_use_is_named():
    error = refusal("{{ level }}", options={"levle": 1})
    assert error.field == "template_options.levle"
    assert "level" in error.message


@pytest.mark.parametrize("name", ["messages", "bos_token", "raise_exception", "range", "thinking"])
def test_the_gateways_own_variables_are_no_options(name):
    source = PLAIN + "{{ range(1) }}{{ thinking }}{{ raise_exception is defined }}"
    assert refusal(source, options={name: 1}).field == f"template_options.{name}"


def test_turning_off_the_thinking_of_a_template_that_cannot_is_refused():
    assert refusal(PLAIN, thinking=False).field == "thinking"


def test_a_template_may_refuse_the_messages():
    error = refusal("{{ raise_exception('roles must alternate') }}")
    assert (error.field, "roles must alternate" in error.message) == ("messages", True)


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ none.x.y }}", "{{ 'a' + 1 }}"])
def test_a_template_that_fails_refuses_the_messages(source):
    assert refusal(source).field == "messages"


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ range(10000000) | list }}"]
)
def test_templates_run_in_a_sandbox(source):
    assert refusal(source).field == "messages"


def test_a_prompt_that_grows_too_long_is_refused():
    assert "1000 characters" in refusal("{% for i in range(9999) %}{{ i }}{% endfor %}").message


def test_a_template_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr("services.gateway.template._MAX_SECONDS", 0.0)
    assert "to render" in refusal("{% for i in range(99) %}{{ i }}{% endfor %}").message


def test_the_file_goes_before_the_configuration(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old"}))
    (tmp_path / "chat_template.jinja").write_text("new")
    template = ChatTemplate.load(tmp_path)
    assert template.render(USER, tools=[], thinking=True, options={}, max_num_characters=9) == "new"


def test_a_configuration_may_name_several_templates(tmp_path):
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "{{ eos_token }}"}]
    config = {"chat_template": named, "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate.load(tmp_path)
    assert template.render(USER, tools=[], thinking=True, options={}, max_num_characters=9) == "</s>"


def test_a_missing_template_names_the_directory(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path}: no chat_template.jinja"):
        ChatTemplate.load(tmp_path)


def test_a_template_that_does_not_compile_is_named(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ConfigError, match=r"chat_template.jinja"):
        ChatTemplate.load(tmp_path)


def test_a_prompt_does_not_depend_on_the_clock():
    source = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}{{ date }}{% endif %}"
    assert render(source, options={"date": "today"}) == "today"
    assert refusal(source, options={"strftime_now": "x"}).field == "template_options.strftime_now"
