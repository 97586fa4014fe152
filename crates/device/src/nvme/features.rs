//! Set and Get Features (NVMe base 2.0, 5.15 and 5.27).

use std::cell::RefCell;

use bus::DevicePort;
use media::Media;
use wire::Nsid;
use wire::nvme::admin::{Request, Select, SetFeatures};
use wire::nvme::features::{
    Arbitration, Feature, HostBehavior, InterruptVectorConfig, NumberOfQueues,
    TemperatureThreshold, fid,
};
use wire::nvme::status::Status;
use zerocopy::IntoBytes;

use super::collect::HostControl;
use super::host_map::HostMapping;
use super::interrupt::Coalescing;
use super::keep_alive::KeepAlive;
use super::power::Power;
use super::threads::What;
use super::{Controller, KELVIN, Options, VECTORS};

/// Features, and the state of those with a task of their own.
pub(super) struct Features {
    pub values: RefCell<Values>,
    pub coalescing: Coalescing,
    pub power: Power,
    pub keep_alive: KeepAlive,
    pub collection: HostControl,
    pub host_map: HostMapping,
}

impl Features {
    pub fn new(options: &Options) -> Features {
        Features {
            values: RefCell::new(Values::new(options)),
            coalescing: Coalescing::default(),
            power: Power::default(),
            keep_alive: KeepAlive::default(),
            collection: HostControl::default(),
            host_map: HostMapping::default(),
        }
    }

    /// Restores the defaults of those that each thread has.
    pub fn reset(&self, options: &Options) {
        self.values.replace(Values::new(options));
        self.coalescing.reset();
    }
}

/// Current values of features. A reset restores the defaults.
pub(super) struct Values {
    pub arbitration: Arbitration,
    pub write_cache: bool,
    /// Over- and under-temperature thresholds, kelvin.
    thresholds: [u16; 2],
    /// Host behavior support: stored without effect.
    behavior: HostBehavior,
    /// Bitmap of the vectors without interrupt coalescing.
    uncoalesced: u64,
    /// Values of the other features, in the order of [`PLAIN`].
    plain: [u32; PLAIN.len()],
}

/// Features whose value is stored without further effect.
const PLAIN: [u8; 4] =
    [fid::ERROR_RECOVERY, fid::INTERRUPT_COALESCING, fid::WRITE_ATOMICITY, fid::ASYNC_EVENT_CONFIG];

/// Features whose default is not stored here.
const SAID_ABOVE: [u8; 5] = [
    fid::NUMBER_OF_QUEUES,
    fid::POWER_MANAGEMENT,
    fid::KEEP_ALIVE_TIMER,
    fid::HOST_COLLECTION,
    fid::HOST_MAP,
];

/// TMPSEL values: the composite temperature, the only one measured, and all sensors (next constant).
const COMPOSITE: u8 = 0;
const ALL_SENSORS: u8 = 15;

/// Attributes of a feature, as returned by Get Features (5.15.1).
const PER_NAMESPACE: u32 = 1 << 1;
const CHANGEABLE: u32 = 1 << 2;

const _: () = assert!(VECTORS as u32 <= u64::BITS, "a bit for every vector");

impl Values {
    fn new(options: &Options) -> Values {
        Values {
            arbitration: Arbitration::new().with_burst(options.arbitration_burst),
            write_cache: true,
            // The warning threshold of Identify: 70 degrees Celsius.
            thresholds: [KELVIN + 70, 0],
            behavior: HostBehavior::NONE,
            uncoalesced: 0,
            plain: [0; PLAIN.len()],
        }
    }

    /// Stores a value that needs no action.
    pub fn set(&mut self, feature: Feature) -> Result<(), Status> {
        match feature {
            Feature::Arbitration(arbitration) => self.arbitration = arbitration,
            Feature::VolatileWriteCache(cache) => self.write_cache = cache.wce(),
            Feature::TemperatureThreshold(threshold) => {
                if ![COMPOSITE, ALL_SENSORS].contains(&threshold.tmpsel()) {
                    return Err(Status::INVALID_FIELD);
                }
                self.thresholds[usize::from(threshold.thsel())] = threshold.tmpth();
            }
            Feature::InterruptVectorConfig(config) => {
                let bit = vector_bit(config.iv())?;
                self.uncoalesced &= !bit;
                self.uncoalesced |= if config.cd() { bit } else { 0 };
            }
            _ => {
                let place = PLAIN.iter().position(|known| *known == feature.id());
                self.plain[place.ok_or(Status::INVALID_FIELD)?] = feature.pack();
            }
        }
        Ok(())
    }

    /// Returns true if interrupts of this vector are not coalesced.
    pub fn is_uncoalesced(&self, vector: u16) -> bool {
        self.uncoalesced & (1 << vector) != 0
    }

    /// The value of a feature other than Number of Queues; `cdw11` selects among several.
    fn get(&self, feature: u8, cdw11: u32) -> Result<u32, Status> {
        match feature {
            fid::ARBITRATION => Ok(self.arbitration.into_bits()),
            fid::VOLATILE_WRITE_CACHE => Ok(u32::from(self.write_cache)),
            fid::TEMPERATURE_THRESHOLD => {
                let which = TemperatureThreshold::from_bits(cdw11);
                let kelvin = self.thresholds.get(usize::from(which.thsel()));
                let kelvin = kelvin.filter(|_| which.tmpsel() == COMPOSITE);
                let kelvin = *kelvin.ok_or(Status::INVALID_FIELD)?;
                Ok(TemperatureThreshold::new().with_tmpth(kelvin).into_bits())
            }
            fid::INTERRUPT_VECTOR_CONFIG => {
                let vector = InterruptVectorConfig::from_bits(cdw11).iv();
                let alone = self.uncoalesced & vector_bit(vector)? != 0;
                Ok(InterruptVectorConfig::new().with_iv(vector).with_cd(alone).into_bits())
            }
            _ => {
                let place = PLAIN.iter().position(|known| *known == feature);
                Ok(self.plain[place.ok_or(Status::INVALID_FIELD)?])
            }
        }
    }
}

fn vector_bit(vector: u16) -> Result<u64, Status> {
    if vector < VECTORS { Ok(1 << vector) } else { Err(Status::INVALID_FIELD) }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Set Features. No feature is saveable.
    pub(super) async fn set_features(
        &self,
        number: u16,
        request: &Request,
        set: SetFeatures,
    ) -> Result<u32, Status> {
        match set.fid {
            _ if set.save => Err(Status::FEATURE_NOT_SAVEABLE),
            fid::AUTONOMOUS_POWER => self.set_transitions(number, request, set.cdw11).await,
            fid::HOST_BEHAVIOR => self.set_behavior(number, request).await,
            fid if is_of_reservations(fid) => {
                self.set_reservation_feature(number, request, set).await
            }
            _ => self.set_feature(request.nsid, set).await,
        }
    }

    pub(super) async fn get_features(
        &self,
        number: u16,
        request: &Request,
        (feature, select, cdw11): (u8, Select, u32),
    ) -> Result<u32, Status> {
        let (supported, current) = (select == Select::Supported, select == Select::Current);
        match feature {
            fid::AUTONOMOUS_POWER if !self.may_idle() => Err(Status::INVALID_FIELD),
            fid::AUTONOMOUS_POWER | fid::HOST_BEHAVIOR if supported => Ok(attributes(feature)),
            fid::AUTONOMOUS_POWER => self.get_transitions(number, request, current).await,
            fid::HOST_BEHAVIOR => self.get_behavior(number, request, current).await,
            _ if !is_of_reservations(feature) => self.get_feature(feature, select, cdw11),
            _ if supported => Ok(attributes(feature)),
            _ => self.get_reservation_feature(number, request, (feature, current, cdw11)).await,
        }
    }

    async fn set_feature(&self, nsid: Nsid, set: SetFeatures) -> Result<u32, Status> {
        let feature = Feature::unpack(set.fid, set.cdw11)?;
        if ![Nsid::NONE, Nsid::BROADCAST].contains(&nsid) {
            self.active_at(nsid)?;
            if attributes(set.fid) & PER_NAMESPACE == 0 {
                return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC);
            }
        }
        if let Feature::PowerManagement(wanted) = feature {
            return self.set_power(wanted).await;
        }
        if let Feature::NumberOfQueues(_) = feature {
            return self.grant_queues();
        }
        if let Feature::HostCollection(to) = feature {
            return self.set_gc_control(to);
        }
        if let Feature::HostMap(map) = feature {
            return self.set_host_map(map);
        }
        if let Feature::KeepAliveTimer(timer) = feature {
            self.set_keep_alive(timer.kato());
            return Ok(0);
        }
        self.features.values.borrow_mut().set(feature)?;
        self.coalesce(feature);
        self.order_all(|| What::Set(feature)).await;
        if let Feature::VolatileWriteCache(cache) = feature
            && !cache.wce()
        {
            // Later writes are durable when they complete; this makes the earlier ones durable.
            self.flush().await?;
        }
        Ok(0)
    }

    /// Takes the limits of interrupt coalescing from a feature, if it is that one.
    pub(super) fn coalesce(&self, feature: Feature) {
        if let Feature::InterruptCoalescing(limits) = feature {
            // Release interrupts that wait under the previous limits.
            self.tell_waiting(|_| true);
            self.features.coalescing.set(limits);
        }
    }

    /// Number of Queues: grants all queues regardless of the request, but only before the first I/O queue is
    /// created (5.27.1.5). A host should set it before creating queues, but this controller does not insist:
    /// existing firmware (SeaBIOS, EDK II) does not, and could not boot from an SSD that rejects it.
    fn grant_queues(&self) -> Result<u32, Status> {
        let here = self.queues.cqs.borrow().iter().skip(1).any(Option::is_some);
        if here || !self.queues.given.borrow().cqs.is_empty() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        Ok(self.queues_offered())
    }

    fn queues_offered(&self) -> u32 {
        let queues = u32::from(self.options.io_queues);
        NumberOfQueues::of(queues, queues).into_bits()
    }

    fn get_feature(&self, feature: u8, select: Select, cdw11: u32) -> Result<u32, Status> {
        let current = match feature {
            fid::NUMBER_OF_QUEUES => self.queues_offered(),
            fid::POWER_MANAGEMENT if select == Select::Current => {
                self.features.power.feature().into_bits()
            }
            fid::KEEP_ALIVE_TIMER if select == Select::Current => {
                self.features.keep_alive.timeout_ms()
            }
            fid::HOST_COLLECTION if select == Select::Current => self.lead()?.into_bits(),
            // Defaults: power state 0, and GC directed by the device.
            fid::HOST_COLLECTION => self.lead().map(|_| 0)?,
            fid::HOST_MAP if select == Select::Current => self.host_map()?.into_bits(),
            fid::HOST_MAP => self.host_map().map(|_| 0)?,
            fid::POWER_MANAGEMENT | fid::KEEP_ALIVE_TIMER => 0,
            _ => self.features.values.borrow().get(feature, cdw11)?,
        };
        match select {
            Select::Current => Ok(current),
            Select::Supported => Ok(attributes(feature)),
            Select::Default | Select::Saved if SAID_ABOVE.contains(&feature) => Ok(current),
            Select::Default | Select::Saved => Values::new(&self.options).get(feature, cdw11),
        }
    }

    /// Host Behavior Support. Accepts both values for command retry delays, which no completion has, and for
    /// telemetry, which there is none of. Formats that the host must enable first are not supported (ELBAS of
    /// CTRATT), so 5.27.1.18 requires rejecting LBAFEE.
    async fn set_behavior(&self, number: u16, request: &Request) -> Result<u32, Status> {
        let mut behavior = HostBehavior::NONE;
        self.receive(number, &request.data, behavior.as_mut_bytes()).await?;
        if behavior.acre > 1 || behavior.etdas > 1 || behavior.lbafee > 0 {
            return Err(Status::INVALID_FIELD);
        }
        self.features.values.borrow_mut().behavior = behavior.known();
        Ok(0)
    }

    /// Returns the value that the host set.
    async fn get_behavior(
        &self,
        number: u16,
        request: &Request,
        current: bool,
    ) -> Result<u32, Status> {
        let behavior =
            if current { self.features.values.borrow().behavior } else { HostBehavior::NONE };
        self.answer(number, request.data, behavior.as_bytes()).await?;
        Ok(0)
    }
}

/// Every feature is changeable, none is saveable.
fn attributes(feature: u8) -> u32 {
    match feature {
        fid::ERROR_RECOVERY | fid::RESERVATION_NOTIFICATION_MASK | fid::RESERVATION_PERSISTENCE => {
            CHANGEABLE | PER_NAMESPACE
        }
        _ => CHANGEABLE,
    }
}

/// Returns true for features of reservations, whose values are stored elsewhere.
fn is_of_reservations(feature: u8) -> bool {
    [fid::HOST_IDENTIFIER, fid::RESERVATION_NOTIFICATION_MASK, fid::RESERVATION_PERSISTENCE]
        .contains(&feature)
}
