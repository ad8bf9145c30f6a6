"""Who is told of what happens to jobs: the command and the topic get it whole, and what they do wrong harms nothing."""

import dataclasses
import json
from pathlib import Path

import boto3
import pytest

from cfn.template.design import TAG
from cluster import notify
from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.jobs.record import JobPaths, write_job
from cluster.notify import Message, Notifier, NotifyEvent, Undelivered, deliver
from lab.aws import start
from tests.cluster.jobs_here import a_job
from tests.processes import SHEBANG
from tests.typed_words import typed

TOPIC = "arn:aws:sns:eu-west-1:123456789012:trainings"


def script(folder: Path, text: str) -> str:
    """A program of the operator's."""
    path = folder / "tell it"
    path.write_text(f"{SHEBANG}import json, os, sys, time\n{text}\n")
    path.chmod(0o755)
    return f"'{path}'"


def message(text: str = "host gone") -> Message:
    return Message(
        event=NotifyEvent.FAILED, job="j-1", text=text, attempt=2, host="10.0.0.3", folder="/shared/jobs/j-1"
    )


@pytest.mark.parametrize(
    "text", ["host 10.0.0.3 was lost", "zwei\nZeilen: $(rm -rf /) `x` é", "nul \0 here", "x" * 10_000]
)
def test_a_command_is_told_on_stdin_and_in_its_environment(text: str, tmp_path: Path) -> None:
    """Its words are its own, no shell's; what happened is JSON, and one line in the environment."""
    told = tmp_path / "told"
    program = script(
        tmp_path,
        "e = {k: v for k, v in os.environ.items() if k.startswith('DLAMI_EVENT')}\n"
        f"json.dump([sys.argv[1:], json.load(sys.stdin), e, os.getcwd()], open({str(told)!r}, 'w'))",
    )

    deliver(f"{program} --to 'the ops; $HOME'", message(text))

    words, said, environment, folder = json.loads(told.read_text())
    assert ["--to", "the ops; $HOME"] == words
    assert ("failed", "j-1", 2, "10.0.0.3") == (said["event"], said["job"], said["attempt"], said["host"])
    assert said["text"] == environment["DLAMI_EVENT_TEXT"] == " ".join(text.replace("\0", "").split())[:2000]
    assert "/" == folder, "in the job's folder it would be ended as one of the job's own"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("sys.exit(3)", "ended with 3"),
        ("sys.exit('refused: hunter22 is wrong')", "ended with 1: refused: … is wrong"),
        ("time.sleep(600)", "did not end within 0.5 s, and was ended"),
        ("os.fork() or time.sleep(600); time.sleep(600)", "did not end within 0.5 s, and was ended"),
    ],
)
def test_what_fails_is_said_without_the_words_that_may_be_secret(code: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(Undelivered) as error:
        deliver(f"{script(tmp_path, code)} --password hunter22", message(), limit_s=0.5 if "sleep" in code else 20)
    assert said in str(error.value)
    assert "hunter22" not in str(error.value) + notify.shown(f"{tmp_path}/x --password hunter22")


def test_a_master_that_could_not_tell_says_why(tmp_path: Path) -> None:
    """In the notifier's own words where it has some, else in the host's; nobody to tell is the operator's mistake."""
    here = Cluster(
        name="here", hosts=(Host(rank=0, address="localhost", slots=1),), folder=tmp_path, shared="/s",
        project=str(ROOT), notify="/no/such/program",
    )  # fmt: skip
    with pytest.raises(Undelivered, match=r"^/no/such/program cannot be started on the master: No such file"):
        notify.tell_on_master(here, NotifyEvent.HEALTH, "x", subject="here")
    with pytest.raises(Undelivered, match=r"^localhost: "):
        notify.tell_on_master(
            dataclasses.replace(here, project=str(tmp_path / "no")), NotifyEvent.HEALTH, "x", subject="h"
        )
    with pytest.raises(ConfigError, match=r"cluster\.toml has no notify: give a command"):
        notify.tell_on_master(dataclasses.replace(here, notify=""), NotifyEvent.HEALTH, "x", subject="h")


def test_a_job_never_waits_for_who_is_told(tmp_path: Path) -> None:
    """Messages go in their order, beside the job; a failure is a line of its log, and those after it are told all the same."""
    told, may_go, log = tmp_path / "told", tmp_path / "may go", []
    program = script(
        tmp_path,
        f"while not os.path.exists({str(may_go)!r}): time.sleep(0.01)\n"
        f"said = json.load(sys.stdin)['text']; open({str(told)!r}, 'a').write(said + '\\n'); sys.exit(said == 'second')",
    )
    notifier = Notifier(program, "j-1", tmp_path, log.append)
    for text in ("first", "second", "third"):
        notifier.tell(NotifyEvent.HEALED, text, attempt=1)
    assert not told.exists()
    may_go.touch()
    notifier.close()

    assert "first\nsecond\nthird\n" == told.read_text()
    assert 1 == len(log)
    assert log[0].startswith("notify: 'healed' was not told: ")


def test_a_topic_is_told_with_attributes_to_filter_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """SNS, in the region that the topic's name says; a queue that subscribed to it has the message."""
    with start(tag_prefix=TAG) as fake:
        for name, value in {
            "AWS_ENDPOINT_URL": fake.url,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
        with pytest.raises(Undelivered, match=f"{TOPIC} did not take it: .*NotFound"):
            deliver(TOPIC, message())
        sns, sqs = (boto3.client(name, region_name="eu-west-1") for name in ("sns", "sqs"))
        sns.create_topic(Name="trainings")
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        sns.subscribe(TopicArn=TOPIC, Protocol="sqs", Endpoint="arn:aws:sqs:eu-west-1:123456789012:q")
        deliver(TOPIC, message())
        envelope = json.loads(sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"])

    assert "dlami: j-1 failed" == envelope["Subject"]
    assert "failed" == envelope["MessageAttributes"]["event"]["Value"]
    sentence, facts = envelope["Message"].strip().split("\n\n")
    assert ("host gone", "10.0.0.3") == (sentence, json.loads(facts)["host"])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("arn:aws:sns:eu-west-1:12345:t", "is not the ARN of a standard SNS topic"),
        ("arn:aws:sns:eu-west-1:123456789012:t.fifo", "is not the ARN of a standard SNS topic"),
        ("curl -d @- https://hooks.example/SECRET", "notify: has a web address in it"),
        ("tell 'x", "notify: is no command: no closing quotation"),
    ],
)
def test_what_cannot_be_told_is_refused_in_the_cluster_file(value: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    (tmp_path / "cluster.toml").write_text(f"notify = {json.dumps(value)}\n")
    with pytest.raises(ConfigError) as error:
        load_cluster(str(tmp_path))
    assert said in str(error.value) and "cluster.toml:1: " in str(error.value)
    assert "SECRET" not in str(error.value)


def test_other_users_do_not_see_who_is_told(tmp_path: Path) -> None:
    """The command's words are in the record for the job's own user alone."""
    paths = JobPaths(tmp_path)
    write_job(paths, a_job("true", "j", notify="tell --password hunter22"))
    assert "hunter22" not in paths.public.read_text()
    assert "hunter22" in paths.job.read_text()
    assert 0o600 == paths.job.stat().st_mode & 0o777


def test_an_operator_can_try_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`notify.test`: on the master, here this machine, with what the cluster file names; --dry-run tells nobody."""
    told = tmp_path / "told"
    program = script(tmp_path, f"open({str(told)!r}, 'w').write(sys.stdin.read())")
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    (tmp_path / "cluster.toml").write_text(f"notify = {json.dumps(program + ' --password hunter22')}\n")
    monkeypatch.setenv("CLUSTER", str(tmp_path))
    assert 0 == typed("notify.test", "--dry-run")
    assert not told.exists()
    assert 0 == typed("notify.test")
    assert ("test", 0) == (json.loads(told.read_text())["event"], json.loads(told.read_text())["attempt"])


def test_what_no_supervisor_tells_is_told_by_the_master(tmp_path: Path) -> None:
    """Health's findings and the like: the same message, with the cluster in a job's place."""
    told = tmp_path / "told"
    program = script(tmp_path, f"open({str(told)!r}, 'w').write(sys.stdin.read())")
    here = Cluster(
        name="here",
        hosts=(Host(rank=0, address="localhost", slots=1),),
        folder=tmp_path,
        shared="/s",
        project=str(ROOT),
        notify=program,
    )

    notify.tell_on_master(here, NotifyEvent.HEALTH, "new  10.0.0.3  /dev/shm is full", subject="here", host="10.0.0.3")

    said = json.loads(told.read_text())
    assert ("health", "here", "10.0.0.3") == (said["event"], said["job"], said["host"])
    assert "new 10.0.0.3 /dev/shm is full" == said["text"]
