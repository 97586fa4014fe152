//! `doorbell validate`: a table of one's own on any plan, its report as JSON, and its errors.

use serde_json::Value;

use crate::common::{CommandOutput, Folder, doorbell, output_of};

const TABLE: &str = "# drive: Mine\n# engine: spdk\nworkload\tbs\tqd\tiops\tp50_us\n\
    randread\t4096\t1\t100000\t9\nspec-read\t4096\t1\t100000\t9\n";

fn validate(name: &str, table: &str, more: &[&str]) -> CommandOutput {
    let folder = Folder::new(name);
    folder.file("my.tsv", table);
    output_of(&mut doorbell(&folder, &[&["validate", "./my.tsv"], more].concat()))
}

#[test]
fn own_table_is_compared_with_any_plan() {
    let more = ["--plan", "gen4", "--quick"];
    let CommandOutput { code, err, out } = validate("validate-own", TABLE, &more);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("my: Mine\nplan gen4, 1 of 2 rows are run, short runs\n"), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    assert!(out.contains("\nworst: "), "{out}");
    let end = "\nnot run: 1 row\n     1  a claim of the vendor, not a measurement\n";
    assert!(out.ends_with(end), "{out}");
}

#[test]
fn report_as_json_has_ratios_and_shares() {
    let more = ["--plan", "gen4", "--quick", "--json", "-"];
    let CommandOutput { code, err, out } = validate("validate-json", TABLE, &more);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let found: Value = serde_json::from_str(&out).expect("JSON");
    let row = &found[0]["rows"][0];
    assert_eq!((&row["line"], &row["depth"], &row["host"]), (&4.into(), &1.into(), &"user".into()));
    let at = |of: &str, figure: usize| row[of][figure].as_f64();
    let ratio = at("model", 0).unwrap() / at("measured", 0).unwrap();
    assert_eq!((at("ratio", 0), at("measured", 1), at("ratio", 1)), (Some(ratio), None, None));
    assert_eq!(found[0]["shares"]["figures"][3], serde_json::json!({ "near": 0, "of": 0 }));
    assert_eq!(found[0]["left_out"][0]["rows"], 1);
}

#[test]
fn errors_name_the_table_its_line_or_the_plan() {
    let bad = TABLE.replace("\t9\n", "\tnine\n");
    let cases: [(&str, &[&str], &str); 4] = [
        (&bad, &["--plan", "gen4"], "./my.tsv:4: p50_us: found \"nine\", expected a number"),
        (TABLE, &[], "./my.tsv: found no plan my, expected --plan"),
        (TABLE, &["--plan", "nonsense"], "nonsense: found nothing"),
        (TABLE, &["none.tsv", "--plan", "gen4"], "none.tsv: cannot be read"),
    ];
    for (table, more, expected) in cases {
        let CommandOutput { code, err, out } = validate("validate-errors", table, more);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{more:?}");
        assert!(err.contains(expected), "{more:?}: {err}");
    }
}
