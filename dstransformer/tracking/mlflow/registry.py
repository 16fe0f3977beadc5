"""Versions of registered models, and which one is the champion. Imports mlflow."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

from dstransformer.evaluation import Score
from dstransformer.tracking.mlflow.models import NOTE_TAG, SCORE_TAG, SIGNATURE_TAG
from dstransformer.tracking.mlflow.records import held_out_split

CHAMPION = "champion"
MODEL_TAG = "model_id"  # of a version: the logged model, which MLflow's SQL registry does not keep
REASON_TAG = "champion_reason"
SCORE_VERSION_TAG = "score"
DONE_TAG = "mlflow.dst_registered"  # the champion has been decided

DESCRIPTION = (
    "Final bundles of `dst train`. The alias `champion` is the version with the highest score among those measured "
    "on the same test set with the same metric signature; its tag `champion_reason` says why."
)
MAX_DESCRIPTION = 5000


@dataclass(frozen=True)
class Standing:
    """The score by which a version is compared.

    Attributes:
        score: The score; its signature says how it was computed.
        split: What it was measured on: ``test`` or ``validation``.
        dataset: Name of that set.
        digest: Hash of its sentences and references; empty if unknown.
    """

    score: Score
    split: str
    dataset: str
    digest: str

    def __str__(self) -> str:
        return f"{self.score.label} {self.score.value:.2f} on {self.split}"


def is_better(candidate: Standing | None, champion: Standing | None, version: str) -> tuple[bool, str]:
    """Whether a candidate replaces the champion, and why.

    Args:
        candidate: The score of the candidate; None if it has none.
        champion: The score of the champion in the same metric on the same split; None if it has none.
        version: The champion's version.
    """
    if candidate is None:
        return False, f"no score to compare with version {version}"
    name = f"{candidate.score.label} on {candidate.split}"
    if champion is None:
        return False, f"not comparable: version {version} has no {name}"
    for what, own, other in (
        ("another signature", candidate.score.signature, champion.score.signature),
        ("another dataset", candidate.digest, champion.digest),
    ):
        if own != other or not own:
            difference = f"{own or 'unknown'}, not {other or 'unknown'}"
            return False, f"not comparable with version {version}: {name} has {what} ({difference})"
    better = candidate.score.value > champion.score.value
    values = f"{candidate.score.value:.2f} {'>' if better else '<='} {champion.score.value:.2f}"
    return better, f"{candidate.score.label} {values} of version {version} on {candidate.split}: {candidate.dataset}"


def standing_of(model: LoggedModel, metric: str | None = None) -> Standing | None:
    """The score of a logged bundle: in the metric that ranks it, or in another one, such as ``final_test/bleu``."""
    name = metric or model.tags.get(SCORE_TAG, "")
    found = [logged for logged in model.metrics or () if logged.key == name]
    if not name or not found:
        return None
    newest = max(found, key=lambda logged: logged.timestamp)
    split, _, score = name.rpartition("/")
    return Standing(
        Score(score, newest.value, model.tags.get(f"{SIGNATURE_TAG}{name}", "")),
        held_out_split(split),
        newest.dataset_name or "",
        newest.dataset_digest or "",
    )


def register(client: MlflowClient, model: LoggedModel, name: str) -> str:
    """Register a logged bundle as a version of ``name``, and make it the champion if it is the best. Idempotent.

    Returns:
        A line that says which version it is and why it is the champion or not.
    """
    _create_registered_model(client, name)
    version = _find_version(client, model, name) or _create_version(client, model, name)
    if DONE_TAG not in version.tags:
        champion = client.get_registered_model(name).aliases.get(CHAMPION)
        if str(champion) == str(version.version):  # a crash after it became the champion
            better, reason = True, version.tags[REASON_TAG]
        else:
            better, reason = _decide(client, model, name, champion)
        standing = standing_of(model)
        tags = {REASON_TAG: reason} | ({} if standing is None else {SCORE_VERSION_TAG: str(standing)})
        for key, value in tags.items():
            client.set_model_version_tag(name, version.version, key, value)
        if better:
            client.set_registered_model_alias(name, CHAMPION, version.version)
        client.set_model_version_tag(name, version.version, DONE_TAG, "true")
        version = client.get_model_version(name, version.version)
    is_champion = str(client.get_registered_model(name).aliases.get(CHAMPION)) == str(version.version)
    role = "is the champion" if is_champion else "is not the champion"
    return f"{name} version {version.version} {role}: {version.tags.get(REASON_TAG, '')}"


def _decide(client: MlflowClient, model: LoggedModel, name: str, champion: str | None) -> tuple[bool, str]:
    own = standing_of(model)
    if champion is None:
        return True, "the first champion" + ("" if own is None else f": {own}")
    other = client.get_model_version(name, champion)
    logged = _logged_model(client, other.tags[MODEL_TAG]) if MODEL_TAG in other.tags else None
    theirs = None if logged is None or own is None else standing_of(logged, model.tags[SCORE_TAG])
    return is_better(own, theirs, str(champion))


def _logged_model(client: MlflowClient, model_id: str) -> LoggedModel | None:
    try:
        return client.get_logged_model(model_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _create_registered_model(client: MlflowClient, name: str) -> None:
    try:
        client.create_registered_model(name, description=DESCRIPTION)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _find_version(client: MlflowClient, model: LoggedModel, name: str) -> ModelVersion | None:
    versions = client.search_model_versions(f"run_id = '{model.source_run_id}'")
    found = [version for version in versions if version.name == name and version.tags.get(MODEL_TAG) == model.model_id]
    return client.get_model_version(name, found[0].version) if found else None


def _create_version(client: MlflowClient, model: LoggedModel, name: str) -> ModelVersion:
    version = client.create_model_version(
        name,
        model.artifact_location,
        run_id=model.source_run_id,
        tags={MODEL_TAG: model.model_id},
        description=model.tags.get(NOTE_TAG, "")[:MAX_DESCRIPTION],
        model_id=model.model_id,
    )
    _show_version(client, model, name, str(version.version))
    return version


def _show_version(client: MlflowClient, model: LoggedModel, name: str, version: str) -> None:
    """Show the version on the page of the logged model, as an MLflow server does by itself."""
    shown = json.loads(client.get_logged_model(model.model_id).tags.get(MLFLOW_MODEL_VERSIONS, "[]"))
    mine = {"name": name, "version": int(version)}
    if not any(str(entry["version"]) == version and entry["name"] == name for entry in shown):
        client.set_logged_model_tags(model.model_id, {MLFLOW_MODEL_VERSIONS: json.dumps([*shown, mine])})
