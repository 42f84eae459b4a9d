"""The example what_if.py answers its questions with figures that the documents may rely on."""

from examples import what_if
from tests.docs.gallery import check_output


def test_it_prints_both_tables_and_the_answer(capsys):
    what_if.main()
    output = capsys.readouterr().out
    check_output("what_if", output)
    lines = output.splitlines()
    assert [line for line in lines if line[:1].isdigit()] == [
        "1. Last week on 8 nodes of 8 GPUs",
        "2. What if there were 4 more nodes?",
        "3. Mean delay of all jobs",
    ]
    answers = {words[0]: (int(words[1]), int(words[-2])) for words in map(str.split, lines[-3:])}
    assert list(answers) == ["walls", "lend", "las"]
    assert all(more < now for now, more in answers.values())
    # Sharing what there is brings more than four nodes behind walls.
    assert answers["las"][0] < answers["walls"][1]


def test_every_job_ends_under_every_policy():
    jobs = len(what_if.last_week())
    assert jobs > 300
    assert [one.reports[0][""].jobs for one in what_if.simulated(what_if.NODES)] == [jobs] * 3
