"""What the settings of a `KubernetesJob` may be: Kubernetes' own refusals come late, one by one, and name no argument."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import TYPE_CHECKING, Any

from roost.job.kubernetes_documents import object_name
from roost.values import check_finite, check_integer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.job.spec import MeshSpec

__all__ = ["check_settings"]

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# A pod's name is its StatefulSet's with a number behind it, and stands in labels with a hash behind it.
_NAME_MAX = 52
_LOWEST_PORT, _HIGHEST_PORT = 1, 65535


def check_settings(name: str, meshes: Mapping[str, MeshSpec], settings: Mapping[str, Any]) -> None:
    """See to it that they can be.

    Args:
        name: the job's name.
        meshes: its meshes.
        settings: those of the job.

    Raises:
        ValueError: they cannot; says which, and what to give instead.
    """
    _check_name(name, meshes)
    namespace = settings["namespace"]
    if namespace is not None and not _LABEL.fullmatch(namespace):
        raise ValueError(f"namespace={namespace!r} is none of Kubernetes': give small letters, digits and -")
    if settings["select"]:
        _check_selection(meshes, settings)
    elif not settings["image"]:
        raise ValueError(
            "KubernetesJob needs image=, a container image with Python and Roost, or select= pods of others"
        )
    elif settings["driver_account"] and not settings["driver"]:
        raise ValueError("driver_account= is for a job with a driver= of its own")
    elif settings["key_file"] is not None:
        raise ValueError("key_file= is for pods of others (select=): own ones are given a key of their own")
    for mesh, spec in meshes.items():
        for argument in spec.args:
            if "=" not in argument:
                raise ValueError(f"args of {mesh}: {argument!r} is no label of a node: give LABEL=VALUE")
    check_finite("KubernetesJob", "idle_s", settings["idle_s"], above=0)
    _check_numbers(settings)
    _check_pod(settings)


def _check_numbers(settings: Mapping[str, Any]) -> None:
    check_integer("KubernetesJob", "port", settings["port"], least=_LOWEST_PORT)
    if settings["port"] > _HIGHEST_PORT:
        raise ValueError(f"KubernetesJob port={settings['port']} is none: give one up to {_HIGHEST_PORT}")
    if settings["shm_mib"] is not None:
        check_integer("KubernetesJob", "shm_mib", settings["shm_mib"], least=1, instead="leave it out for no limit")


def _check_pod(settings: Mapping[str, Any]) -> None:
    for network in settings["allow"]:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ValueError(f'allow={network!r}: {error}; give networks as "10.0.0.0/8"') from None
    try:
        json.dumps([settings["pod"], settings["driver_pod"]])
    except (TypeError, ValueError) as error:
        raise ValueError(f"pod= or driver_pod= is no document: {error}; give dicts, lists, texts and numbers") from None


def _check_name(name: str, meshes: Mapping[str, MeshSpec]) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name={name!r} is no name for Kubernetes: give small letters, digits and -, a letter first and no - last"
        )
    for mesh in meshes:
        made = object_name(name, mesh)
        if len(made) > _NAME_MAX:
            raise ValueError(
                f"{made!r} is too long a name for Kubernetes ({len(made)} letters of {_NAME_MAX}): give the job or the mesh a "
                "shorter one"
            )


def _check_selection(meshes: Mapping[str, MeshSpec], settings: Mapping[str, Any]) -> None:
    if set(settings["select"]) != set(meshes):
        raise ValueError(
            f"select= is for {', '.join(sorted(settings['select']))}, and the meshes are {', '.join(sorted(meshes))}: give each a selector"
        )
    if settings["driver"]:
        raise ValueError("select= is for pods of others, and driver= for a job of its own: give one of them")
    if settings["key_file"] is None:
        raise ValueError("select= needs key_file=, the key that the agents in those pods were given")
