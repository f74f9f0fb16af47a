"""`stead convert`: a spec as Kubernetes pods, and pods as a spec.

Rule: reads a file and prints; it needs no cluster. What the other language cannot say is refused, with the name of the
field.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from stead.commands.output import parsed_spec, read_text
from stead.errors import Invalid

if TYPE_CHECKING:
    from stead.kubernetes.pod_manifest import PodOptions

KUBERNETES, FORMS = click.Choice(["kubernetes"]), click.Choice(["yaml", "json"])


@click.command(short_help="Convert work to and from Kubernetes pods.")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--to", "to", type=KUBERNETES, help="Print the work of FILE as pods.")
@click.option("--from", "source", type=KUBERNETES, help="Print the pods in FILE as work.")
@click.option(
    "--namespace", "-n", metavar="NAME", default="default", show_default=True, help="Namespace of work that names none."
)
@click.option("--scheduler-name", metavar="NAME", default="stead", show_default=True, help="The scheduler of the pods.")
@click.option("--leave-out", is_flag=True, help="Leave out what cannot be said, and list it on stderr.")
@click.option("-o", "--output", "form", type=FORMS, default="yaml", show_default=True, help="Output form.")
def convert(
    file: str, to: str | None, source: str | None, namespace: str, scheduler_name: str, leave_out: bool, form: str
) -> int:
    """Convert the work in FILE (YAML; - is standard input) to pods for `kubectl apply`, or pods to work for `stead
    submit`, `stead why --spec` and `stead what-if`. What cannot be said in the other language is refused, with the
    name of the field.

    \b
    Examples:
      stead convert --to kubernetes work.yaml | kubectl apply -f -
      stead convert --to kubernetes work.yaml -n vision -o json
      kubectl get pod web-0 -o yaml | stead convert --from kubernetes - --leave-out
    """
    if (to is None) == (source is None):
        raise click.UsageError("give either --to kubernetes or --from kubernetes")
    from stead.kubernetes.pod_manifest import PodOptions

    left_out: list[str] = []
    note = left_out.append if leave_out else None
    if to is not None:
        documents = _manifests(file, PodOptions(namespace, scheduler_name), note)
        whole: dict[str, Any] = {"apiVersion": "v1", "kind": "List", "items": documents}
    else:
        whole = _spec(file, note)
        documents = [whole]
    click.echo(json.dumps(whole, indent=2) if form == "json" else _yaml(documents), nl=form == "json")
    for each in left_out:
        click.echo(f"left out: {each}", err=True)
    return 0


def _yaml(documents: list[dict[str, Any]]) -> str:
    import yaml

    return str(yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=110))


def _manifests(file: str, options: PodOptions, note: Callable[[str], None] | None) -> list[dict[str, Any]]:
    from stead.kubernetes.work_manifests import manifests_of
    from stead.specs.sections import Misplaced
    from stead.specs.submissions import read_submission

    written = parsed_spec(file)
    try:
        work = read_submission(written)
        for id in (*work.pieces, *work.groups):
            item = work.groups[id] if id in work.groups else work.pieces[id].ask
            for field, value in (("for", work.durations.get(id)), ("deadline", item.deadline), ("owner", item.owner)):
                if value and note is None:
                    raise Misplaced(f"{work.places[id]}.{field}: cannot be said for a pod; leave it out")
                if value and note is not None:
                    note(f"{id}: {field}: cannot be said for a pod")
        return list(manifests_of(work, options))
    except Misplaced as error:
        raise Invalid(f"{file}: {error}") from None


def _spec(file: str, note: Callable[[str], None] | None) -> dict[str, Any]:
    from stead.kubernetes.pod_conversion import Classes, converted
    from stead.kubernetes.pod_manifest import Refusal

    try:
        objects = _objects(file)
        values = {
            str(each["metadata"].get("name")): int(each.get("value") or 0)
            for each in objects
            if each.get("kind") == "PriorityClass" and isinstance(each.get("metadata"), dict)
        }
        entries = []
        for each in objects:
            if each.get("kind") == "PriorityClass":
                continue
            metadata = each.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            if each.get("kind") != "Pod":
                kind = each.get("kind")
                raise Invalid(f"{kind} {name} is not a pod; give its pod, as in kubectl get pod NAME -o yaml")

            def refuse(field: str, why: str, name: object = name) -> None:
                if note is None:
                    raise Refusal(f"pod {name}: {field}", why)
                note(f"pod {name}: {field}: {why}")

            entries.append(converted(each, Classes(values), refuse))
    except Invalid as error:
        raise Invalid(f"{file}: {error}") from None
    if not entries:
        raise Invalid(f"{file}: it has no pods; a good file is the output of kubectl get pod NAME -o yaml")
    return {"work": entries}


def _objects(file: str) -> list[dict[str, Any]]:
    """The objects in a file, also those in lists."""
    from stead.specs.sections import load_all_yaml

    found = []
    for document in load_all_yaml(read_text(file)):
        items = document.get("items") if isinstance(document, dict) and "items" in document else [document]
        for item in items if isinstance(items, list) else [items]:
            if not isinstance(item, dict):
                raise Invalid("it must contain objects of Kubernetes, such as {apiVersion: v1, kind: Pod, ...}")
            found.append(item)
    return found
