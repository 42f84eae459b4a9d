"""YAML as files of users have it."""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Refuses what PyYAML passes over: a field that is given twice, of which the last one would count."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The fields of a mapping. Raises yaml.YAMLError."""
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for number, (key, _) in enumerate(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value in names[:number]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} is given twice", key.start_mark
                )
        fields: dict[Any, Any] = super().construct_mapping(node, deep)
        return fields


def load(text: str) -> Any:
    """What a text says. Raises yaml.YAMLError, also for a field that is given twice."""
    return yaml.load(text, _Loader)  # noqa: S506  # it loads plain data only, as its base does
