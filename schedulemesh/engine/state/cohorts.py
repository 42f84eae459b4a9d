"""The tree of cohorts: which pools lend each other idle quota, and which of them are near each other."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from schedulemesh.domain.cohort import CohortSpec


class Neighbours(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The other pools of a pool's tree of cohorts."""

    #: (steps up to the nearest cohort that both are in, pool name), ascending.
    by_distance: tuple[tuple[int, str], ...] = ()
    names: frozenset[str] = frozenset()


_NOBODY = Neighbours()


class CohortTree:
    """All cohorts, and the pools in them. A cohort exists from its first mention on."""

    def __init__(self) -> None:
        self.specs: dict[str, CohortSpec] = {}
        #: The cohort of each pool that is in one.
        self._cohort_of: dict[str, str] = {}
        self._neighbours: dict[str, Neighbours] = {}
        #: What ``path`` has found.
        self._paths: dict[str, tuple[str, ...]] = {}

    def ensure(self, spec: CohortSpec) -> None:
        """Create a cohort, or change its definition."""
        self.specs[spec.name] = spec
        if spec.parent is not None:
            self.specs.setdefault(spec.parent, CohortSpec(name=spec.parent))
        self._neighbours.clear()
        self._paths.clear()

    def join(self, pool_name: str, cohort: str | None) -> None:
        """Put a pool into this cohort, which is created where it does not exist; None: into none."""
        if self._cohort_of.get(pool_name) == cohort:
            return
        self._neighbours.clear()
        self._paths.clear()
        if cohort is None:
            del self._cohort_of[pool_name]
            return
        self._cohort_of[pool_name] = cohort
        self.specs.setdefault(cohort, CohortSpec(name=cohort))

    def rename_pool(self, name: str, new_name: str) -> None:
        """A pool has another name."""
        self._cohort_of = {
            new_name if pool == name else pool: cohort for pool, cohort in self._cohort_of.items()
        }
        self._neighbours.clear()
        self._paths.clear()

    def remove(self, name: str) -> None:
        """Remove a cohort that nothing is in."""
        del self.specs[name]

    def rename(self, name: str, new_name: str) -> None:
        """A cohort has another name; what is in it stays in it."""
        renamed = {}
        for spec in self.specs.values():
            parent = new_name if spec.parent == name else spec.parent
            own_name = new_name if spec.name == name else spec.name
            renamed[own_name] = msgspec.structs.replace(spec, name=own_name, parent=parent)
        self.specs = renamed
        self._cohort_of = {
            pool: new_name if cohort == name else cohort for pool, cohort in self._cohort_of.items()
        }
        self._neighbours.clear()
        self._paths.clear()

    def path(self, pool_name: str) -> tuple[str, ...]:
        """The cohorts that a pool is in, from its own one up to the root; empty: it is in none."""
        path = self._paths.get(pool_name)
        if path is None:
            path = self._paths[pool_name] = self.upwards(self._cohort_of.get(pool_name))
        return path

    def upwards(self, cohort: str | None) -> tuple[str, ...]:
        """A cohort and those above it."""
        path: list[str] = []
        while cohort is not None:
            path.append(cohort)
            spec = self.specs.get(cohort)
            cohort = None if spec is None else spec.parent
        return tuple(path)

    def would_be_cycle(self, name: str, parent: str) -> bool:
        """Whether this cohort would be above itself with this parent."""
        return name in self.upwards(parent)

    def pools_below(self, cohort: str) -> Iterator[str]:
        """The pools in a cohort, directly or in cohorts below it."""
        return (pool for pool in self._cohort_of if cohort in self.path(pool))

    def neighbours(self, pool_name: str) -> Neighbours:
        """The other pools of its tree of cohorts."""
        if pool_name not in self._cohort_of:
            return _NOBODY
        neighbours = self._neighbours.get(pool_name)
        if neighbours is None:
            neighbours = self._neighbours[pool_name] = self._find(pool_name)
        return neighbours

    def _find(self, pool_name: str) -> Neighbours:
        own_path = self.path(pool_name)
        others = []
        for other in self._cohort_of:
            shared = set(self.path(other)).intersection(own_path)
            if shared and other != pool_name:
                others.append((min(map(own_path.index, shared)), other))
        return Neighbours(
            by_distance=tuple(sorted(others)), names=frozenset(name for _, name in others)
        )
