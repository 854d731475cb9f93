from tiny_cells import FAKES

from tacit.studies.bench import read_results, write_report


def test_the_report(tmp_path):
    paths = write_report(FAKES, tmp_path, "A title")
    assert [path.name for path in paths] == ["report.html", "report.md"]
    text = paths[1].read_text()
    assert text.startswith("# A title")
    lines = [line for line in text.splitlines() if line.startswith("| standard |")]
    assert "0.398 ± 0.001 ↓" in lines[0]  # worse in NLL
    assert "↑" in next(line for line in text.splitlines() if line.startswith("| deep_ensemble |"))
    assert "quickdraw" in text
    pictures = sorted(tmp_path.glob("*.png"))
    assert len(pictures) == 5
    assert all(f"({picture.name})" in text for picture in pictures)
    page = paths[0].read_text()
    assert page.count("<img") == 5
    assert "3 seeds" in page
    assert "| method | seeds | error, % |" in text
    assert "| method | log-probs | probs |" in text
    assert "paired t-test" in text


def test_the_report_of_a_single_result(finished):
    text = write_report(read_results(finished), finished, "One")[1].read_text()
    assert "| standard |" in text
    assert "nan" not in text
    assert "t-test" not in text  # the reference is missing
    assert "1 seed;" in text


def test_names_and_titles_are_not_markup(tmp_path):
    (tmp_path / "<img src=x onerror=alert(1)>.failed.txt").touch()
    named = [{**found, "method": "<b>[a](b)|c"} for found in FAKES]
    for path in write_report(named, tmp_path, "<script>alert(1)</script>"):
        text = path.read_text()
        assert "<script" not in text
        assert "<img src=x" not in text
        assert "<b>" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert "Failed training runs, missing below: &lt;img src=x onerror=alert(1)&gt;." in text
