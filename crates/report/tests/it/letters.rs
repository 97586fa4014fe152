//! Letter plots, and the other exhibits of papers as text.

use report::exhibits::{Details, Verdicts};
use report::letters;
use report::model::paper::*;

use super::exhibits;

fn figure(series: Vec<(&str, Vec<[f64; 2]>)>) -> Figure {
    let series = series.into_iter().map(|(name, points)| Series {
        name: name.into(),
        letter: name.chars().next().unwrap_or('?'),
        whose: Whose::Ours,
        points,
    });
    Figure {
        caption: "a figure".into(),
        number: String::new(),
        form: Form::Lines,
        x: Axis::linear("things", ""),
        y: Axis::linear("height", ""),
        series: series.collect(),
    }
}

#[test]
fn plot_is_as_printed() {
    let text = letters::figure(&exhibits::stacked());
    assert_eq!(
        text,
        "\
Latency by part
  latency, us
        4 +
          |                                                            t
          |
        3 +
          |
          |                                           t
        2 +
          |
          |                          t
          |         t                                 m                m
        1 +         1                1                p                p
          |
          |
        0 +
          +---------+----------------+----------------+----------------+--------
                   512             1024             2048             4096
           bytes
    p: protocol
    m: PCM read
    t: data transfer
    1: p and m
"
    );
}

#[test]
fn coincident_points_have_a_sign_of_their_own_in_the_legend() {
    let text = letters::figure(&figure(vec![
        ("alpha", vec![[0.0, 0.0], [1.0, 5.0], [2.0, 10.0]]),
        ("beta", vec![[0.0, 10.0], [1.0, 5.0], [2.0, 10.0]]),
        ("gamma", vec![[0.0, 10.0], [1.0, 5.0], [2.0, 0.0]]),
    ]));
    // Of nine points, a group of three and two of two coincide.
    let drawn: String =
        text.lines().filter_map(|line| line.split_once(['|', '+'])).map(|line| line.1).collect();
    for (sign, count) in [('a', 1), ('b', 0), ('g', 1), ('1', 1), ('2', 1), ('3', 1)] {
        assert_eq!(drawn.matches(sign).count(), count, "{sign} in\n{text}");
    }
    for line in ["    1: a and b and g", "    2: b and g", "    3: a and b"] {
        assert!(text.lines().any(|other| other == line), "{line:?} in\n{text}");
    }
}

#[test]
fn every_point_of_every_series_is_listed() {
    // More coincidences than there are signs: every pair of eight series has a place of its own.
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut points = vec![Vec::new(); names.len()];
    let mut place = 0.0;
    for first in 0..names.len() {
        for second in first + 1..names.len() {
            points[first].push([place, 1.0]);
            points[second].push([place, 1.0]);
            place += 2.0;
        }
    }
    let text = letters::figure(&figure(names.into_iter().zip(points).collect()));
    for first in 0..names.len() {
        for second in first + 1..names.len() {
            let pair = format!(": {} and {}", names[first], names[second]);
            let lines: Vec<&str> = text.lines().filter(|line| line.ends_with(&pair)).collect();
            let [line] = lines[..] else { panic!("{pair} in\n{text}") };
            let sign = line.trim_start().chars().next().expect("a sign");
            let head = format!("    {sign}: ");
            assert_eq!(
                text.lines().filter(|line| line.starts_with(&head)).count(),
                1,
                "{sign} in\n{text}"
            );
        }
    }
}

#[test]
fn lines_have_80_columns_at_most() {
    let mut long = exhibits::policies();
    long.caption = "a caption of many words ".repeat(12);
    long.x.places = (0..7).map(|number| format!("a place with a long name {number}")).collect();
    let figures =
        [exhibits::sizes(), exhibits::policies(), exhibits::stacked(), exhibits::cores(), long];
    for figure in figures {
        let text = letters::figure(&figure);
        for line in text.lines() {
            assert!(line.chars().count() <= 80 && line == line.trim_end(), "{line:?} in\n{text}");
        }
        let legend = figure.series.len();
        assert!(text.lines().count() > 16 + legend, "{text}");
    }
}

#[test]
fn points_that_cannot_be_drawn_are_left_out() {
    let mut log =
        figure(vec![("a", vec![[1.0, 0.0], [2.0, f64::NAN], [3.0, 100.0], [f64::INFINITY, 1.0]])]);
    log.y.logarithmic = true;
    let text = letters::figure(&log);
    let drawn: String =
        text.lines().filter_map(|line| line.split_once(['|', '+'])).map(|line| line.1).collect();
    assert_eq!(drawn.matches('a').count(), 1, "{text}");
    let none = letters::figure(&figure(vec![("a", Vec::new())]));
    assert_eq!(none, "a figure\n    (no points)\n");
}

#[test]
fn verdict_that_is_not_on_record_is_in_capitals() {
    let papers = exhibits::papers().papers;
    let [expected, other] = [&papers[0], &papers[1]].map(|paper| Verdicts(paper).to_string());
    assert!(expected.ends_with("2 hold, 1 depart, 1 quoted\n"), "{expected}");
    assert!(!expected.contains("FAILS") && papers[0].is_as_expected());
    assert!(other.contains("\n     FAILS       3.200         -       Larger blocks"), "{other}");
    assert!(!papers[1].is_as_expected());
}

#[test]
fn details_have_swings_causes_and_figures() {
    let text = Details(&exhibits::papers().papers[0]).to_string();
    for part in [
        "  within 10.0 % of the paper's number: holds\n",
        "      device.costs.parse                    1.212      1.510 us\n",
        "    no effect: host.costs.submit\n",
        "  with no interrupts: - us, still departs\n",
        "  not a check: this model has no power\n",
    ] {
        assert!(text.contains(part), "{part}in {text}");
    }
    assert!(text.contains(&letters::figure(&exhibits::sizes())), "{text}");
}
