//! The device's end of a world: its medium, its front end and its faults. Of what types it is made is
//! chosen here, when it is started: a plan without faults has none of their code on its way.

use std::rc::Rc;

use ::device::faults::Faults;
use bus::DevicePort;
use media::{Banked, Contents, Faulty, Media, Pace};
use runtime::Rt;

use crate::interfaces::Interface;
use crate::plan::Plan;
use crate::world::RunError;

/// A device that runs, in the tasks of its executor.
pub struct Device {
    medium: Rc<Banked>,
    faults: Option<Rc<Faults>>,
}

/// The contents of a plan's medium, as they are before its first device.
pub(crate) fn contents(plan: &Plan) -> Result<Contents, RunError> {
    Contents::new(plan.medium.contents.clone()).map_err(RunError::of)
}

/// What the interface and the plan ask of each other is there.
pub(crate) fn check<I: Interface>(plan: &Plan) -> Result<(), RunError> {
    I::check(plan).map_err(RunError)?;
    if !plan.faults.is_empty() && !I::FAULTS {
        let (origin, name) = (&plan.origin, I::NAME);
        let expected = "none: faults strike no commands of this interface";
        return Err(RunError(format!(
            "{origin}: faults: found some, expected {expected} ({name})"
        )));
    }
    Ok(())
}

impl Device {
    /// A device with these contents, at this port.
    pub fn start<I: Interface, P: DevicePort>(
        port: P,
        contents: Contents,
        pace: Pace,
        plan: &Plan,
    ) -> Device {
        let rt = port.rt().clone();
        let medium = Rc::new(Banked::new(&rt, contents, pace));
        let faults = start_on::<I, P, _>(&rt, port, medium.clone(), plan);
        Device { medium, faults }
    }

    /// Its faults, if the plan has any.
    pub fn faults(&self) -> Option<&Rc<Faults>> {
        self.faults.as_ref()
    }

    /// How often each of its faults has struck.
    pub fn fault_counts(&self) -> Vec<(String, u64)> {
        self.faults.as_ref().map_or_else(Vec::new, |faults| faults.counts())
    }

    /// Whether its link has gone down.
    pub(crate) fn is_down(&self) -> bool {
        use ::device::faults::Hook;
        self.faults.as_ref().is_some_and(Hook::is_down)
    }

    /// Waits until its link goes down: for ever, where nothing takes it down.
    pub(crate) async fn link_down(&self, rt: &Rt) {
        match &self.faults {
            Some(faults) => faults.link_down(rt).await,
            None => core::future::pending().await,
        }
    }

    /// Its contents, for another device, once its tasks have been dropped.
    ///
    /// # Panics
    /// If its tasks are still there.
    pub(crate) fn into_contents(self) -> Contents {
        let medium = Rc::try_unwrap(self.medium).ok().expect("the device's tasks are gone");
        medium.into_contents()
    }
}

fn start_on<I: Interface, P: DevicePort, M: Media>(
    rt: &Rt,
    port: P,
    medium: Rc<M>,
    plan: &Plan,
) -> Option<Rc<Faults>> {
    if plan.faults.is_empty() {
        I::start(port, medium, plan);
        return None;
    }
    let faults = Faults::start(rt, &plan.faults, plan.run.seed);
    let medium = Rc::new(Faulty::new(rt, medium, faults.harm.clone()));
    I::start_faulty(port, medium, plan, &faults);
    Some(faults)
}
