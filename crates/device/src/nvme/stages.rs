//! Stages and costs of the controller.

use bus::{Cost, DevicePort};
use runtime::{Stage, stage};

use super::Options;
use crate::faults::Faults;

/// Costs that the controller spends on the device's processor.
pub const COSTS: &[&str] = &["parse", "post completion"];

/// Stages that the controller records, in addition to its costs.
pub const STAGES: &[&str] = &[
    "doorbell",
    "fetch",
    "fault",
    "power state",
    "dispatch",
    "prp list",
    "place list",
    "sgl segment",
    "data transfer",
    "completion queue full",
];

/// The stages and costs of a controller, looked up.
pub(super) struct Stages {
    pub doorbell: Stage,
    pub fetch: Stage,
    /// `None` if fault injection is off.
    pub fault: Option<Stage>,
    /// `None` if there is one power state.
    pub power: Option<Stage>,
    pub dispatch: Stage,
    pub prp_list: Stage,
    pub place_list: Stage,
    pub sgl_segment: Stage,
    pub transfer: Stage,
    /// Of data that the controller waits for and sends nowhere.
    pub media: Stage,
    pub queue_full: Stage,
    pub parse: Cost,
    pub post: Cost,
}

impl Stages {
    pub fn new(port: &impl DevicePort, options: &Options, faults: &Faults) -> Stages {
        let (rt, has_states) = (port.rt(), !options.power_states.is_empty());
        Stages {
            doorbell: stage!(rt, STAGES, "doorbell"),
            fetch: stage!(rt, STAGES, "fetch"),
            fault: faults.may_be_on().then(|| stage!(rt, STAGES, "fault")),
            power: has_states.then(|| stage!(rt, STAGES, "power state")),
            dispatch: stage!(rt, STAGES, "dispatch"),
            prp_list: stage!(rt, STAGES, "prp list"),
            place_list: stage!(rt, STAGES, "place list"),
            sgl_segment: stage!(rt, STAGES, "sgl segment"),
            transfer: stage!(rt, STAGES, "data transfer"),
            media: stage!(rt, media::STAGES, "media"),
            queue_full: stage!(rt, STAGES, "completion queue full"),
            parse: port.cost("parse"),
            post: port.cost("post completion"),
        }
    }
}
