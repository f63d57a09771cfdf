from __future__ import annotations

from dataclasses import replace

import pytest
from paramserving import make_account, make_parameters, make_record, make_report, make_update

from headrace.checkpoint import Blob
from headrace.errors import FencedError, InvalidDataError
from headrace.types import PolicyVersion
from services.paramserver.versions import Update, Versions


def versions_at(number: int, *, epoch: int = 2, highest: int | None = None) -> Versions:
    """A server in ``epoch`` that recovered version 1.number, while 1.highest was the last issued."""
    record = make_record(number, accounts=())
    top = PolicyVersion(1, number if highest is None else highest)
    return Versions(epoch=epoch, highest=top, recovered=record)


def issue(versions: Versions, update: Update) -> PolicyVersion:
    versions.admit(update)
    version = versions.next_version
    versions.install(
        make_record(
            version.number,
            epoch=version.epoch,
            accounts=update.accounts,
            report=update.report,
            acting=update.acting,
            training=update.training,
        )
    )
    return version


def test_the_first_version_is_number_zero() -> None:
    versions = Versions(epoch=1, highest=None)
    assert issue(versions, make_update(None, 0)) == PolicyVersion(1, 0)


def test_numbers_go_on_above_everything_ever_issued() -> None:
    versions = versions_at(50, highest=73)
    assert issue(versions, make_update(PolicyVersion(1, 73), 74)) == PolicyVersion(2, 74)


def test_a_learner_of_an_earlier_epoch_goes_on() -> None:
    versions = versions_at(50)
    versions.admit(make_update(PolicyVersion(1, 60), 61))


def test_a_learner_that_is_behind_what_was_recovered_is_refused() -> None:
    with pytest.raises(FencedError, match=r"started from version 1\.40, the newest is 1\.50"):
        versions_at(50).admit(make_update(PolicyVersion(1, 40), 41))


def test_once_this_epoch_has_issued_earlier_ones_are_fenced() -> None:
    versions = versions_at(50)
    issue(versions, make_update(PolicyVersion(1, 50), 51))
    with pytest.raises(FencedError, match="fetch it and go on from it"):
        versions.admit(make_update(PolicyVersion(1, 60), 61))


def test_without_a_base_only_the_very_first_is_admitted() -> None:
    with pytest.raises(FencedError, match=r"version 1\.50 is already there: fetch it"):
        versions_at(50).admit(make_update(None, 0))


def test_a_server_that_lost_everything_takes_the_learner_that_lives() -> None:
    versions = Versions(epoch=2, highest=None)
    versions.admit(make_update(PolicyVersion(1, 9), 10))


def test_a_base_that_this_server_never_issued_is_refused() -> None:
    with pytest.raises(FencedError, match="never issued here"):
        Versions(epoch=2, highest=None).admit(make_update(PolicyVersion(2, 0), 1))


def test_saying_the_newest_version_again_gets_the_same_version() -> None:
    versions = Versions(epoch=1, highest=None)
    update = make_update(None, 0)
    version = issue(versions, update)
    again = versions.repeated(update)
    assert again is not None
    assert again.version == version


def test_the_same_parameters_after_another_update_are_a_new_version() -> None:
    versions = Versions(epoch=1, highest=None)
    first = issue(versions, make_update(None, 0))
    assert versions.repeated(make_update(first, 1, acting=Blob.encode(make_parameters(0)))) is None


def test_saying_it_again_adds_training_state_and_accounts_that_went_on() -> None:
    versions = Versions(epoch=1, highest=None)
    update = make_update(None, 0, training=None, accounts=(make_account(settled=3),))
    issue(versions, update)
    training = Blob.encode({})
    again = versions.repeated(replace(update, training=training, accounts=(make_account(settled=5),)))
    assert again is not None
    assert (again.training, again.accounts) == (training, (make_account(settled=5),))


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (make_account(settled=4, trained=10, stale=2), "settled_through from 5 to 4"),
        (make_account(settled=5, trained=9, stale=2), "trained from 10 to 9"),
        (make_account(settled=5, trained=10, stale=1), r"dropped\[stale\] from 2 to 1"),
        (make_account(settled=5, trained=10), r"dropped\[stale\] from 2 to 0"),
        (make_account("sampler-1", settled=5), "account of sampler-0/0 is missing"),
    ],
)
def test_accounts_never_go_back(after: object, named: str) -> None:
    versions = Versions(epoch=1, highest=None)
    first = issue(versions, make_update(None, 0, accounts=(make_account(settled=5, trained=10, stale=2),)))
    with pytest.raises(InvalidDataError, match=named):
        versions.admit(make_update(first, 1, accounts=(after,)))


def test_old_versions_are_forgotten_by_bytes_but_never_the_newest_two() -> None:
    versions = Versions(epoch=1, highest=None, recent_bytes=0)
    base = None
    for updates in range(10):
        base = issue(versions, make_update(base, updates))
    assert sorted(record.version.number for record in versions.held()) == [8, 9]


def test_an_evaluated_version_is_kept_until_its_result_is_in() -> None:
    versions = Versions(epoch=1, highest=None, recent_bytes=0)
    first = issue(versions, make_update(None, 0))
    assert versions.begin_evaluation(first)
    base = first
    for updates in range(1, 10):
        base = issue(versions, make_update(base, updates))
    record = versions.end_evaluation(first)
    assert record is not None
    assert record.acting == Blob.encode(make_parameters(0))
    assert versions.find(first) is None


def test_an_evaluation_of_a_forgotten_version_is_not_kept() -> None:
    versions = Versions(epoch=1, highest=None, recent_bytes=0)
    first = base = issue(versions, make_update(None, 0))
    for updates in range(1, 4):
        base = issue(versions, make_update(base, updates))
    assert not versions.begin_evaluation(first)


def test_evaluations_that_never_end_do_not_pile_up() -> None:
    versions = Versions(epoch=1, highest=None, recent_bytes=0)
    base = None
    for updates in range(20):
        base = issue(versions, make_update(base, updates))
        versions.begin_evaluation(base)
    assert len(list(versions.held())) <= 6


def test_the_bytes_held_are_those_of_the_versions_held() -> None:
    versions = Versions(epoch=1, highest=None, recent_bytes=3 * make_record(0).acting.nbytes)
    base = None
    for updates in range(12):
        base = issue(versions, make_update(base, updates))
        if updates % 5 == 0:
            versions.begin_evaluation(base)
        assert versions.held_bytes == sum(record.nbytes for record in versions.held())


def test_an_evaluation_learns_the_environment_steps_of_its_version() -> None:
    versions = Versions(epoch=1, highest=None, recent_bytes=0)
    first = base = issue(versions, make_update(None, 0, report=make_report(0, env_steps=17)))
    for updates in range(1, 5):
        base = issue(versions, make_update(base, updates))
    assert versions.env_steps_at(first) == 17
