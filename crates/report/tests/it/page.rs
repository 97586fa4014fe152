//! Pages as text. `tools/browser` reads them in a browser.

use std::collections::BTreeSet;

use report::model::paper::{Exhibit, Figure};
use report::model::*;
use report::page;

use super::{exhibits, samples};

fn all() -> Vec<(&'static str, Document)> {
    vec![
        ("both worlds", samples::both_worlds()),
        ("comparison", samples::comparison()),
        ("flash", samples::flash()),
        ("papers", exhibits::papers()),
    ]
}

/// The page without the document in it.
fn shown(document: &Document) -> String {
    let page = page::html(document);
    let json = page::embedded(&page).expect("a document").to_owned();
    page.replace(&json, "")
}

/// An element that begins or ends.
#[derive(Debug, PartialEq)]
struct Tag<'a> {
    name: &'a str,
    ends: bool,
    /// As written behind the name.
    attributes: &'a str,
}

/// The tags of a page. Its texts have no `<` and its attributes no `>`.
fn tags(page: &str) -> Vec<Tag<'_>> {
    let style =
        page.find("<style>").expect("a style sheet")..page.find("</style>").expect("its end");
    let pieces = page.match_indices('<').filter(|(at, _)| *at <= style.start || *at >= style.end);
    let tags = pieces.map(|(at, _)| {
        let (tag, _) = page[at + 1..].split_once('>').expect("the end of a tag");
        let (tag, ends) = tag.strip_prefix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        Tag { name, ends, attributes }
    });
    tags.collect()
}

#[test]
fn page_needs_nothing_else() {
    for (name, document) in all() {
        let page = shown(&document);
        for outside in
            ["http:", "https:", "src=", "@import", "@font-face", "javascript:", "<link", "<iframe"]
        {
            assert!(!page.contains(outside), "{name}: {outside}");
        }
        let addresses = page.match_indices("url(").map(|(at, _)| &page[at + 4..at + 5]);
        assert!(addresses.into_iter().all(|first| first == "#"), "{name}: url(");
        assert!(
            page.contains("content=\"default-src 'none'; style-src 'unsafe-inline';"),
            "{name}"
        );
    }
}

#[test]
fn elements_close_and_names_are_unique() {
    for (name, document) in all() {
        let page = shown(&document);
        let (mut open, mut ids) = (Vec::new(), BTreeSet::new());
        for tag in tags(&page) {
            if tag.name == "!DOCTYPE" || ["meta", "br"].contains(&tag.name) {
                continue;
            }
            if tag.ends {
                assert_eq!(open.pop(), Some(tag.name), "{name}: {tag:?} in {open:?}");
                continue;
            }
            open.push(tag.name);
            if let Some((_, id)) = tag.attributes.split_once("id=\"") {
                let id = id.split('"').next().expect("its end");
                assert!(ids.insert(id), "{name}: {id} twice");
            }
        }
        assert_eq!(open, [""; 0], "{name}");
        let links = page.split("href=\"#").skip(1);
        for to in links.filter_map(|rest| rest.split('"').next()) {
            assert!(ids.contains(to), "{name}: #{to} is nowhere");
        }
    }
}

#[test]
fn pictures_have_names_and_tables() {
    for (name, document) in all() {
        let page = shown(&document);
        let pictures = tags(&page).into_iter().filter(|tag| {
            tag.name == "svg"
                && ["class=\"wide\"", "class=\"narrow\""]
                    .iter()
                    .any(|class| tag.attributes.contains(class))
        });
        let mut count = 0;
        for picture in pictures {
            assert!(picture.attributes.contains("role=\"img\""), "{name}: {picture:?}");
            let (_, label) = picture.attributes.split_once("aria-label=\"").expect("a label");
            assert!(!label.starts_with('"'), "{name}: {picture:?}");
            count += 1;
        }
        assert!(count >= 8 && count % 2 == 0, "{name}: {count} pictures");
        assert!(page.matches("<table").count() >= 2, "{name}");
    }
}

#[test]
fn document_in_a_page_is_the_document() {
    for (name, mut document) in all() {
        document.command.arguments.push("</script><script>alert(1)</script><!--".into());
        let page = page::html(&document);
        let json = page::embedded(&page).expect("a document");
        let read = report::from_json(json).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(read == document, "{name}");
        assert_eq!(page.matches("<script").count(), 1, "{name}");
        assert_eq!(page, page::html(&document), "{name}: a page is the same each time");
    }
    assert_eq!(page::embedded("<html></html>"), None);
}

#[test]
fn text_of_a_document_is_never_markup() {
    const HOSTILE: &str = "\"><script>alert('&amp;')</script><b x='";
    let mut document = samples::comparison();
    document.runs.truncate(2);
    document.runs[1].world = World::Live;
    for run in &mut document.runs {
        for text in [
            &mut run.interface,
            &mut run.plan.name,
            &mut run.plan.about,
            &mut run.plan.origin,
            &mut run.plan.text,
            &mut run.work.file,
            &mut run.work.text,
            &mut run.jobs[0].name,
        ] {
            HOSTILE.clone_into(text);
        }
        HOSTILE.clone_into(&mut run.plan.sources[0].key);
        HOSTILE.clone_into(&mut run.plan.sources[1].value);
        HOSTILE.clone_into(&mut run.plan.sources[2].source);
        HOSTILE.clone_into(&mut run.timeline[0].spans[1].stage);
        HOSTILE.clone_into(&mut run.timeline[0].spans[1].lane);
        run.notes.push(HOSTILE.into());
        run.warnings.push(Warning { kind: WarningKind::Other, text: HOSTILE.into() });
        run.jobs[0].messages.push(HOSTILE.into());
        let of = run.jobs[0].operations.get_mut(&Kind::Read).expect("reads");
        HOSTILE.clone_into(&mut of.breakdown.as_mut().expect("a breakdown").stages[3]);
        if let Some(link) = &mut run.link {
            HOSTILE.clone_into(&mut link.up.packets[0].kind);
        }
    }
    let mut papers = exhibits::papers();
    for exhibit in papers.papers.iter_mut().flat_map(|paper| &mut paper.exhibits) {
        match exhibit {
            Exhibit::Check(check) => {
                HOSTILE.clone_into(&mut check.subject.unit);
                check.swings.iter_mut().for_each(|swing| HOSTILE.clone_into(&mut swing.key));
                check.details.push(HOSTILE.into());
            }
            Exhibit::Figure(figure) => {
                HOSTILE.clone_into(&mut figure.series[0].name);
                figure.x.places.iter_mut().for_each(|place| HOSTILE.clone_into(place));
            }
            Exhibit::Table(table) => HOSTILE.clone_into(&mut table.lines[0][0]),
            Exhibit::Quotation(quotation) => HOSTILE.clone_into(&mut quotation.why),
        }
    }
    for document in [document, papers] {
        let page = shown(&document);
        assert!(page.matches("&lt;script&gt;").count() > 4);
        assert_eq!(page.matches("<script").count(), 1, "that of the document");
        assert!(!page.contains("<b x="));
    }
}

/// The classes of the shapes with a title.
fn classes_of(page: &str, title: &str) -> BTreeSet<String> {
    let named = format!("><title>{title}</title>");
    let shapes = page.match_indices(&named).map(|(at, _)| {
        let tag = &page[page[..at].rfind('<').expect("its tag")..at];
        tag.split("class=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next())
            .expect("a class")
            .to_owned()
    });
    shapes.collect()
}

#[test]
fn stage_has_one_colour_on_a_page() {
    let page = shown(&samples::comparison());
    let mut seen = BTreeSet::new();
    for stage in ["data transfer", "media", "context switch", "take block"] {
        let classes = classes_of(&page, stage);
        assert_eq!(classes.len(), 1, "{stage}: {classes:?}");
        assert!(seen.insert(classes.first().cloned()), "{stage} has the colour of another");
    }
}

#[test]
fn curve_below_another_of_the_same_values_is_wider() {
    let page = shown(&exhibits::papers());
    let wider = page.matches("<path class=\"curve c2\" style=\"stroke-width:6\"").count();
    assert_eq!(wider, 2, "one curve in two sizes");
    assert_eq!(
        page.matches("stroke-width:").count() - page.matches("stroke-width: ").count(),
        wider
    );
}

#[test]
fn unexplained_time_is_drawn_and_listed() {
    let page = shown(&samples::comparison());
    let classes: Vec<String> = classes_of(&page, "unexplained").into_iter().collect();
    assert_eq!(classes, ["part unexplained"]);
    let mut overlapping = samples::comparison();
    for run in &mut overlapping.runs {
        let of = run.jobs[0].operations.get_mut(&Kind::Read).expect("reads");
        let breakdown = of.breakdown.as_mut().expect("a breakdown");
        breakdown.mean.unexplained_ns = -250.0;
        breakdown.at.iter_mut().for_each(|around| around.shares.unexplained_ns = -250.0);
    }
    let page = shown(&overlapping);
    assert_eq!(classes_of(&page, "unexplained"), BTreeSet::new());
    assert!(page.contains("-250 ns"), "a negative rest is in the table");
}

#[test]
fn picture_of_a_hundred_thousand_bins_is_no_larger_than_its_pixels() {
    let mut document = samples::comparison();
    document.runs.truncate(1);
    let of = document.runs[0].jobs[0].operations.get_mut(&Kind::Read).expect("reads");
    of.latency.bins = (0..100_000).map(|number| Bin(4000 + number, 1)).collect();
    of.latency.count = 100_000;
    let page = shown(&document);
    let longest =
        page.match_indices(" d=\"").map(|(at, _)| page[at + 4..].find('"').unwrap_or(0)).max();
    assert!(longest.is_some_and(|length| length < 40_000), "{longest:?} bytes");
}

fn figures(document: &mut Document) -> impl Iterator<Item = &mut Figure> {
    let exhibits = document.papers.iter_mut().flat_map(|paper| &mut paper.exhibits);
    exhibits.filter_map(|exhibit| match exhibit {
        Exhibit::Figure(figure) => Some(figure),
        _ => None,
    })
}

#[test]
fn documents_with_gaps_have_pages() {
    let bare = |mut document: Document| {
        for run in &mut document.runs {
            run.timeline.clear();
            (run.link, run.cores, run.flash, run.series) = (None, None, None, None);
            for job in &mut run.jobs {
                job.depth.clear();
                for of in job.operations.values_mut() {
                    of.breakdown = None;
                    of.windows = Windows { width_ps: 0, windows: Vec::new() };
                    of.latency = Histogram::default();
                    (of.count, of.bytes, of.iops, of.bytes_per_second, of.errors) =
                        (0, 0, 0.0, 0.0, 3);
                }
            }
        }
        document
    };
    let mut without_jobs = samples::flash();
    without_jobs.runs[0].jobs.clear();
    let mut without_kinds = samples::flash();
    without_kinds.runs[0].jobs[0].operations.clear();
    let mut without_runs = samples::flash();
    without_runs.runs.clear();
    let mut still = samples::comparison();
    for request in still.runs.iter_mut().flat_map(|run| &mut run.timeline) {
        request.spans.iter_mut().for_each(|span| span.to_ps = span.from_ps);
    }
    let mut lone = samples::comparison();
    lone.runs.iter_mut().for_each(|run| run.timeline.truncate(1));
    let mut empty_figures = exhibits::papers();
    for figure in figures(&mut empty_figures) {
        figure.series.iter_mut().for_each(|series| series.points.clear());
    }
    let mut zeros = exhibits::papers();
    for figure in figures(&mut zeros) {
        (figure.x.logarithmic, figure.y.logarithmic) = (true, true);
        let points = figure.series.iter_mut().flat_map(|series| &mut series.points);
        points.for_each(|point| *point = [0.0, 0.0]);
    }
    for document in [
        bare(samples::both_worlds()),
        bare(samples::comparison()),
        without_jobs,
        without_kinds,
        without_runs,
        still,
        lone,
        empty_figures,
        zeros,
    ] {
        let page = shown(&document);
        for broken in ["NaN", "inf", "=\"-0\""] {
            let drawn = page.split("</style>").nth(1).expect("a body");
            assert!(!drawn.contains(broken), "{broken} in {}", document.command.name);
        }
    }
}

#[test]
fn other_commands_have_pages() {
    let mut document = exhibits::papers();
    document.papers.clear();
    document.conformance = vec![Conformance {
        controller: "a controller".into(),
        cases: vec![Case {
            of: "NVMe base 2.0".into(),
            section: "3.3".into(),
            name: "queue_full".into(),
            about: "a full queue".into(),
            verdict: CaseVerdict::Failed,
            found: "found 1, expected 2".into(),
        }],
        left_out: 0,
    }];
    document.plans = vec![PlanFound {
        typed: "gen5".into(),
        plan: None,
        report: None,
        errors: vec!["gen5.toml: link.lanes: expected 1, 2, 4, 8 or 16".into()],
    }];
    let page = shown(&document);
    for text in ["queue_full", "✗ failed", "found 1, expected 2", "gen5.toml: link.lanes"] {
        assert!(page.contains(text), "{text}");
    }
}
