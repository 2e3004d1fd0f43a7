from __future__ import annotations

import json

from kvsim.report.figures.beside import Error, Predicted, errors_figure, predicted_figure


def test_intervals_start_at_the_prediction_and_what_was_printed_stands_beside_them() -> None:
    rows = [Predicted("weights", 15.0, 14.5, 14.0, 16.0), Predicted("kv <b>", 3.0, 4.0, 4.0, 4.0)]
    figure = predicted_figure(rows, "GiB")
    spans, printed = figure["data"]
    assert spans["x"] == [14.5, 4.0]
    assert spans["error_x"]["array"] == [1.5, 0.0]
    assert spans["error_x"]["arrayminus"] == [0.5, 0.0]
    assert printed["x"] == [15.0, 3.0]
    assert spans["y"] == printed["y"] == ["weights", "kv &lt;b&gt;"]
    assert figure["layout"]["xaxis"]["title"]["text"] == "GiB"
    assert "color" not in json.dumps(figure["layout"])


def test_errors_are_drawn_in_percent_by_whether_the_bound_holds_them() -> None:
    rows = [Error("a", 0.05, True), Error("b", -0.5, False), Error("c", 0.1, None)]
    figure = errors_figure(rows, 0.2)
    drawn = {trace["name"]: (trace["x"], trace["y"]) for trace in figure["data"]}
    assert drawn == {
        "within the bound": ([5.0], ["a"]),
        "outside the bound": ([-50.0], ["b"]),
        "no bound is stated": ([10.0], ["c"]),
    }
    band, _ = figure["layout"]["shapes"]
    assert (band["x0"], band["x1"]) == (-20.0, 20.0)
    assert figure["layout"]["yaxis"]["categoryarray"] == ["a", "b", "c"]
    low, high = figure["layout"]["xaxis"]["range"]
    assert low < -50 < 50 < high


def test_without_a_bound_or_a_difference_the_axis_still_has_a_length() -> None:
    layout = errors_figure([Error("a", 0.0, None)], None)["layout"]
    assert len(layout["shapes"]) == 1
    assert layout["xaxis"]["range"] == [-1.0, 1.0]
