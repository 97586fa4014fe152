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
    let asked = all.iter().filter(|paper| name.is_none_or(|name| paper.name == name));
    // Each in a thread of its own, as a world is all of one thread; printed in order.
    std::thread::scope(|scope| {
        let running: Vec<_> = asked.map(|paper| (paper, scope.spawn(paper.exhibits))).collect();
        for (paper, exhibits) in running {
            println!("{}\n{}\n", paper.title, paper.authors);
            let exhibits = exhibits.join().map_err(|_| format!("{}: it panicked", paper.name))?;
            for exhibit in exhibits.map_err(|error| error.to_string())? {
                println!("{exhibit}");
                good &= exhibit.holds();
            }
        }
        Ok(good)
    })
}
