"""Credentials are whole or refused, readable by their owner only, and followed when they change."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
import yaml
from securing import Keeper
from typer.testing import CliRunner

from headrace import certificates
from headrace.cli.main import app, report_error
from headrace.credential_files import MIN_TOKEN_LENGTH, read_tls, read_tokens
from headrace.errors import ConfigurationError
from headrace.rpc.credentials import Credentials


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(tmp_path / "credentials")


def test_all_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Credentials(tmp_path, tmp_path / "token")
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["--tls", "--token-file"]


def test_a_key_of_another_certificate_is_refused(keeper: Keeper) -> None:
    (keeper.folder / "tls.key").write_bytes(certificates.issue(keeper.ca, 1).key)
    with pytest.raises(ConfigurationError, match=r"tls\.key is not the key of .*tls\.crt"):
        read_tls(keeper.folder)


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_what_is_no_pem_is_refused(keeper: Keeper, name: str) -> None:
    (keeper.folder / name).write_bytes(b"\x00nonsense")
    with pytest.raises(ConfigurationError, match=r"\(PEM\)"):
        read_tls(keeper.folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no token"),
        ("\n \n", "holds no token"),
        ("a" * (MIN_TOKEN_LENGTH - 1), "line 1"),
        ("a" * 20 + "\nwith a space in it and long", "line 2"),
        ("ä" * 20, "line 1"),
        ("\n".join("a" * 20 + str(number) for number in range(9)), "the most is 8"),
    ],
)
def test_what_is_no_token_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "token"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigurationError, match=words):
        read_tokens(path)


def test_the_first_token_is_sent_and_each_is_accepted(keeper: Keeper) -> None:
    keeper.tokens.append(certificates.make_token())
    keeper.write_tokens()
    credentials = keeper.credentials(tls=False)
    first, second = keeper.tokens
    assert credentials.current().metadata == (("authorization", f"Bearer {first}"),)
    assert credentials.refusal([("authorization", f"Bearer {second}")]) == ""
    for bad in (f"Bearer {first}x", f"bearer {first}", first, "", "Bearer ä"):
        assert credentials.refusal([("authorization", bad)])
    assert credentials.refusal([("authorization", f"Bearer {first}")] * 2)


def test_files_are_looked_at_again_only_after_a_while(keeper: Keeper) -> None:
    now = [0.0]
    credentials = Credentials(keeper.folder, clock=lambda: now[0], look_s=1.0)
    keeper.take_leaf_of(keeper.ca)
    now[0] = 0.9
    assert credentials.current().generation == 0
    now[0] = 1.0
    renewed = credentials.current()
    assert renewed.generation == 1
    assert renewed.tls == read_tls(keeper.folder)


def test_a_folder_that_is_swapped_by_a_link_is_noticed(keeper: Keeper, tmp_path: Path) -> None:
    # As Kubernetes changes a mounted Secret.
    link, other = tmp_path / "mounted", Keeper(tmp_path / "next")
    link.symlink_to(keeper.folder)
    credentials = Credentials(link, look_s=0.0)
    (tmp_path / "draft").symlink_to(other.folder)
    (tmp_path / "draft").replace(link)
    assert credentials.current().tls == read_tls(other.folder)


def test_files_that_have_gone_leave_the_last_ones_in_use(keeper: Keeper) -> None:
    credentials = keeper.credentials()
    before = credentials.current()
    for path in list(keeper.folder.iterdir()):
        path.unlink()
    assert credentials.current() == before


def certs(*arguments: str) -> str:
    """Run ``headrace certs``. ConfigurationError as the command line would show it."""
    result = CliRunner().invoke(app, ["certs", *arguments])
    if isinstance(result.exception, ConfigurationError):
        assert report_error(result.exception) == 2
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_certs_makes_what_services_take_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    certs(str(folder))
    credentials = Credentials(folder, folder / "token")
    assert credentials.with_tls
    assert credentials.with_token
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_certs_overwrites_nothing(tmp_path: Path) -> None:
    certs(str(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigurationError, match="already holds"):
        certs(str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_renewing_changes_only_the_certificate_and_its_key(tmp_path: Path) -> None:
    certs(str(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    certs(str(tmp_path), "--renew", "--days", "3")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name for name in after if after[name] != before[name]} == {"tls.crt", "tls.key"}
    read_tls(tmp_path)


def test_there_must_be_a_ca_to_renew_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no ca\.crt and no ca\.key"):
        certs(str(tmp_path), "--renew")


def test_the_secrets_hold_what_services_mount_and_not_the_key_of_the_ca(tmp_path: Path) -> None:
    certs(str(tmp_path), "--kubernetes")
    tls = yaml.safe_load((tmp_path / "headrace-tls.yaml").read_text())
    token = yaml.safe_load((tmp_path / "headrace-token.yaml").read_text())
    assert (tls["metadata"]["name"], tls["type"]) == ("headrace-tls", "kubernetes.io/tls")
    assert (token["metadata"]["name"], token["type"]) == ("headrace-token", "Opaque")
    for name in ("ca.crt", "tls.crt", "tls.key"):
        assert base64.b64decode(tls["data"][name]) == (tmp_path / name).read_bytes()
    assert set(tls["data"]) == {"ca.crt", "tls.crt", "tls.key"}
    assert base64.b64decode(token["data"]["token"]) == (tmp_path / "token").read_bytes()
