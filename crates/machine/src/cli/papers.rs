//! `doorbell papers`: figures and tables of papers beside what this code gives.

use machine::papers;

pub(super) fn papers(name: Option<&str>) -> Result<bool, String> {
    let all = papers::all();
    if let Some(name) = name
        && !all.iter().any(|paper| paper.name == name)
    {
        let known: Vec<_> = all.iter().map(|paper| paper.name).collect();
        return Err(format!("no paper {name:?}: expected one of {}", known.join(", ")));
    }
    let mut good = true;
    for paper in all.iter().filter(|paper| name.is_none_or(|name| paper.name == name)) {
        println!("{}\n{}\n", paper.title, paper.authors);
        for exhibit in (paper.exhibits)().map_err(|error| error.to_string())? {
            println!("{exhibit}");
            good &= exhibit.holds();
        }
    }
    Ok(good)
}
