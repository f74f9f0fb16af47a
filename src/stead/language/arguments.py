"""Labels and taints from the command line, environment variables and files.

Rule: text is accepted only if it has one meaning. JSON whose quotes the shell removed is accepted if it is not
ambiguous. Duplicate keys, labels that stead sets itself, and everything that Kubernetes' label syntax forbids are
refused in one sentence that names the bad part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from stead.errors import Invalid, did_you_mean
from stead.language.labels import EMPTY, IDENTITY_KEYS, Labels, check_key, check_value
from stead.language.taints import Effect, Taint

_GOOD_LABELS = "'zone=us-west4-a,gpu_type=A100' or '{\"zone\": \"us-west4-a\"}'"
_GOOD_TAINTS = "'gpu_node=true:NoSchedule' or '{\"gpu_node\": \"true\"}'"

_DOWNWARD_LINE = re.compile(r'\s*(?P<key>[^\s="#:]+)=(?P<value>".*")\s*')
_SEPARATOR = re.compile(r"\s*,\s*|\s+")


def parse_labels(text: str) -> Labels:
    """Labels from ``--labels`` or the environment: ``{"zone":"a"}``, ``{zone:a}`` or ``zone=a,gpu=``."""
    stripped = _text("labels", text, _GOOD_LABELS).strip()
    if stripped.startswith("{"):
        return labels_of(_unique("label", _map_pairs("labels", stripped, _GOOD_LABELS)))
    pairs = []
    for part in stripped.split(",") if stripped else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise Invalid(f"labels {text!r} have the part {part.strip()!r} without '='; good labels are {_GOOD_LABELS}")
        pairs.append((key.strip(), value.strip()))
    return labels_of(_unique("label", pairs))


def labels_of(pairs: Mapping[Any, Any]) -> Labels:
    """Labels from a user's map, checked; labels that stead sets itself are refused."""
    labels = Labels.checked(pairs)
    for key in labels:
        if key in IDENTITY_KEYS:
            raise Invalid(f"label {key!r} is set by stead on every node; choose another key, for example 'zone'")
    return labels


def parse_labels_yaml(text: str) -> Labels:
    """Labels from a file: a flat YAML map, or ``key="value"`` lines of Kubernetes' downward API.

    Values are kept as written, so ``version: 1.10`` and ``spot: yes`` stay text.
    """
    _text("labels", text, "'zone: us-west4-a'")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if lines and _DOWNWARD_LINE.fullmatch(lines[0]):
        return labels_of(_unique("label", [_downward_pair(line) for line in lines]))
    return labels_of(_unique("label", _yaml_pairs(text)))


def merge(from_file: Labels = EMPTY, from_argument: Labels = EMPTY) -> Labels:
    """The labels of a node: those from the file, overridden by those from the argument."""
    return from_file.changed(from_argument)


def _downward_pair(line: str) -> tuple[str, str]:
    found = _DOWNWARD_LINE.fullmatch(line)
    try:
        return (found["key"], str(json.loads(found["value"]))) if found else _bad_line(line)
    except json.JSONDecodeError:
        return _bad_line(line)


def _bad_line(line: str) -> NoReturn:
    raise Invalid(f"the line {line.strip()!r} of the labels file is not a label; a good line is 'zone=\"us-west4-a\"'")


def _yaml_pairs(text: str) -> list[tuple[str, str]]:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        what = f"line {mark.line + 1}: {problem}" if mark else "it contains invalid characters"
        raise Invalid(f"the labels file is not YAML, {what}; a good line is 'zone: us-west4-a'") from None
    except RecursionError:
        raise Invalid("the labels file is nested too deeply; a good line is 'zone: us-west4-a'") from None
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise Invalid("the labels file must hold a map from key to value; a good line is 'zone: us-west4-a'")
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode):
            raise Invalid(
                f"line {key.start_mark.line + 1} of the labels file must be one key with one value; a good line is "
                f"'zone: us-west4-a'"
            )
        if value.tag == "tag:yaml.org,2002:null":
            raise Invalid(
                f"label {key.value!r} in the labels file has no value; for an empty value write '{key.value}: \"\"'"
            )
    return [(key.value, value.value) for key, value in root.value]


def parse_taints(text: str) -> tuple[Taint, ...]:
    """Read the taints of a node from text.

    Args:
        text: ``{"gpu_node":"true"}``, ``{gpu_node:true}``, or kubectl's ``gpu_node=true:NoSchedule``, where the effect
            may be left out (no-schedule) and several taints are separated by commas or spaces.

    Returns:
        The taints.

    Raises:
        Invalid: The text is not a list of taints, or names one twice.

    Example:
        ```python
        parse_taints("gpu_node=true:NoExecute, team=blue")
        ```
    """
    stripped = _text("taints", text, _GOOD_TAINTS).strip()
    if stripped.startswith("{"):
        return taints_of(_unique("taint", _map_pairs("taints", stripped, _GOOD_TAINTS)))
    taints = [_taint(part, text) for part in _SEPARATOR.split(stripped)] if stripped else []
    _unique("taint", ((f"{taint.key}:{effect_text(taint.effect)}", taint) for taint in taints))
    return tuple(taints)


def taints_of(pairs: Mapping[Any, Any]) -> tuple[Taint, ...]:
    """NoSchedule taints from a user's map, checked. This is the form of the taints proposal for Ray."""
    if not isinstance(pairs, Mapping):
        raise Invalid(f"taints must be a map such as {{'gpu_node': 'true'}}, not {pairs!r}")
    return tuple(
        Taint(check_key(key, "taint key"), check_value(value, f"the value of taint {key!r},"))
        for key, value in pairs.items()
    )


@dataclass(frozen=True, slots=True)
class TaintChange:
    """One change to the taints of a node, as in kubectl: set a taint, or remove the taints that match.

    For a removal, None means any value or any effect.
    """

    key: str
    value: str | None = None
    effect: Effect | None = None
    removes: bool = False

    @property
    def taint(self) -> Taint | None:
        """The taint to set, if it is not a removal."""
        return None if self.removes else Taint(self.key, self.value or "", self.effect or Effect.NO_SCHEDULE)

    def __str__(self) -> str:
        """kubectl's form: ``gpu_node=true:NoSchedule`` or ``gpu_node:NoSchedule-``."""
        if not self.removes:
            return taint_text(Taint(self.key, self.value or "", self.effect or Effect.NO_SCHEDULE))
        value = "" if self.value is None else f"={self.value}"
        return f"{self.key}{value}{'' if self.effect is None else ':' + effect_text(self.effect)}-"


def parse_taint_change(text: str) -> TaintChange:
    """kubectl's ``k=v:NoSchedule`` and ``k:NoSchedule`` set; ``k-``, ``k:NoSchedule-``, ``k=v:NoSchedule-`` remove.

    A removal with a value removes only taints with that value. To set a taint you may leave out the effect, but not
    both effect and value: a bare key may be a removal with a forgotten ``-``.
    """
    stripped = _text("taint", text, _GOOD_TAINTS).strip()
    removes = stripped.endswith("-")
    key, value, effect = _taint_parts(stripped[:-1] if removes else stripped, text)
    if removes:
        return TaintChange(key, value, effect, removes=True)
    if value is None and effect is None:
        raise Invalid(f"taint {text!r} names no effect; write '{key}:NoSchedule' to set it or '{key}-' to remove it")
    return TaintChange(key, value or "", effect or Effect.NO_SCHEDULE)


def _taint(part: str, text: str) -> Taint:
    key, value, effect = _taint_parts(part, text)
    return Taint(key, value or "", effect or Effect.NO_SCHEDULE)


def _taint_parts(part: str, text: str) -> tuple[str, str | None, Effect | None]:
    body, colon, effect = part.partition(":")
    key, equals, value = body.partition("=")
    if not key:
        raise Invalid(f"taint {text!r} has {part!r} where a key was expected; good taints are {_GOOD_TAINTS}")
    return (
        check_key(key, "taint key"),
        check_value(value, f"the value of taint {key!r},") if equals else None,
        parse_effect(effect) if colon else None,
    )


def taint_text(taint: Taint) -> str:
    """A taint in kubectl's form, which `parse_taints` parses: ``gpu_node=true:NoSchedule``."""
    return f"{taint.key}{'=' + taint.value if taint.value else ''}:{effect_text(taint.effect)}"


def parse_effect(text: object) -> Effect:
    """An effect in kubectl's or stead's spelling, in any case: ``NoSchedule``, ``no-schedule``."""
    if isinstance(text, str):
        folded = text.strip().lower().replace("_", "-")
        for effect in Effect:
            if folded in (effect, effect.replace("-", "")):
                return effect
    known = [effect_text(effect) for effect in Effect]
    hint = did_you_mean(str(text), known)
    raise Invalid(f"taint effect {text!r} is unknown{hint}; good values are {', '.join(known)}")


def effect_text(effect: Effect) -> str:
    """kubectl's spelling: ``NoSchedule``."""
    return "".join(word.capitalize() for word in effect.split("-"))


def kubectl_spelling(text: str) -> str:
    """A text with all effects in kubectl's spelling: ``team=blue:no-execute`` becomes ``team=blue:NoExecute``."""
    return _EFFECT.sub(lambda found: f":{effect_text(Effect(found[1]))}", text)


_EFFECT = re.compile(rf":({'|'.join(effect.value for effect in Effect)})\b")


def _text(what: str, text: object, good: str) -> str:
    if not isinstance(text, str):
        raise Invalid(f"{what} must be given as text such as {good}, not {text!r}")
    return text


def _map_pairs(what: str, text: str, good: str) -> list[tuple[str, Any]]:
    """The pairs of a JSON map, with or without quotes; duplicates are kept for the caller."""
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        pairs = None
    if isinstance(pairs, _Pairs):
        return pairs
    inside = text[1:-1].strip() if text.endswith("}") else "{"
    result = []
    for part in inside.split(",") if inside else ():
        key, *values = (_unquoted(word.strip()) for word in part.split(":"))
        if len(values) != 1 or set(key + values[0]) & set("{}[]\"' \t\n"):
            raise Invalid(f"{what} {text!r} cannot be read as a map at {part.strip()!r}; good {what} are {good}")
        result.append((key, values[0]))
    return result


class _Pairs(list[tuple[str, Any]]):
    """The pairs of a JSON object; a type of its own to distinguish it from a JSON list."""


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word


def _unique(what: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise Invalid(f"{what} {key!r} is given twice; give it once, for example {_once(key, value)!r}")
        result[key] = value
    return result


def _once(key: str, value: Any) -> str:
    return taint_text(value) if isinstance(value, Taint) else f"{key}={value}"
