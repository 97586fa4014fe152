//! A fio job file of arbitrary text: a job, or errors that each print with their line.

pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let lines = text.lines().count().max(1);
    match workload::job::parse("fuzz.fio", text) {
        Ok(file) => assert!(!file.jobs.is_empty()),
        Err(errors) => {
            assert!(!errors.0.is_empty());
            for error in &errors.0 {
                assert!((1..=lines).contains(&(error.line as usize)), "{error}");
                assert!(error.to_string().starts_with("fuzz.fio:"));
            }
        }
    }
}
