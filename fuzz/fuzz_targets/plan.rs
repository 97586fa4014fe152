//! A plan of arbitrary text: a plan or errors; a valid plan gives a bus that can be built.
use plan::Plan;

pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    match Plan::parse(text, "fuzz.toml") {
        Ok(plan) => {
            assert!(!plan.report().is_empty());
            let spec = plan.sim_spec();
            assert!(spec.cores > 0 && spec.register_bytes.is_multiple_of(4));
        }
        Err(errors) => assert!(errors.to_string().contains("fuzz.toml")),
    }
}
