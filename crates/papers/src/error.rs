//! Why an exhibit could not be computed.

use bus::OutOfMemory;
use campaign::diskhog::HogError;
use campaign::tenants::TenantsError;
use host::IoError;
use plan::PlanErrors;
use world::RunError;
use world::work::WorkError;

/// Why an exhibit could not be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExhibitError {
    /// The plan is invalid with the settings of the exhibit.
    #[error(transparent)]
    Plan(#[from] PlanErrors),
    /// The plan has values that were fitted to a drive. Nothing is fitted in the papers' plans.
    #[error("plan {plan}: found fitted values, expected a source, or an assumption, of each")]
    Fitted { plan: &'static str },
    /// The jobs of the exhibit are invalid.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// The world cannot be built.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Operations of a job failed, with these messages.
    #[error("{}", .0.join("; "))]
    Job(Vec<String>),
    /// A run of diskhog failed.
    #[error(transparent)]
    Hog(#[from] HogError),
    /// A run of tenants failed.
    #[error(transparent)]
    Tenants(#[from] TenantsError),
    #[error(transparent)]
    Io(#[from] IoError),
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}
