//! `doorbell papers`: figures and tables of papers beside what this code gives.

use papers::{self, Paper};
use world::RunError;

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
    let exhibits_of = |paper: &Paper| {
        let mut exhibits = (paper.exhibits)()?;
        if let Some(long) = paper.long.filter(|_| name.is_some()) {
            exhibits.extend(long()?);
        }
        Ok::<_, RunError>(exhibits)
    };
    // Each in a thread of its own, as a world is all of one thread; printed in order.
    std::thread::scope(|scope| {
        let run = |paper| (paper, scope.spawn(move || exhibits_of(paper)));
        let running: Vec<_> = asked.map(run).collect();
        for (paper, exhibits) in running {
            println!("{}\n{}\n", paper.title, paper.authors);
            let exhibits = exhibits.join().map_err(|_| format!("{}: it panicked", paper.name))?;
            for exhibit in exhibits.map_err(|error| error.to_string())? {
                println!("{exhibit}");
                good &= exhibit.holds();
            }
            if paper.long.is_some() && name.is_none() {
                println!("more, in minutes: doorbell papers {}\n", paper.name);
            }
        }
        Ok(good)
    })
}
