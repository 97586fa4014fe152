//! Queues for threads in virtual time, with a reset, an end or a drop at every moment. Each "thread" is a
//! task; only messages pass between them and the controller's task.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::fake::{Aborts, Answer, Traits};
use crate::common::{BLOCK, Crowd, Setup, World, pattern, poll_times};
use bus::HostPort;
use bus::sim::SimHost;
use host::nvme::threads::{Queues, ThreadQueue, granter};
use host::nvme::{Completion, Controller, Options, Queue, QueueOptions};
use host::{BlockDevice, InitError, IoError, Kind};
use runtime::Span;
use wire::nvme::io::{Command, Request};
use wire::{Lba, QueueId};

const QUEUES: u16 = 3;

type Mine = ThreadQueue<SimHost>;

/// A controller whose task serves others until all have left.
struct Served {
    controller: Rc<Controller<SimHost>>,
    queues: Queues,
    over: Rc<Cell<bool>>,
}

impl Served {
    async fn start(world: &World, options: Options) -> Served {
        let options = Options { queues: QUEUES, ..options };
        let controller = Controller::start(world.host.clone(), options).await.unwrap();
        let ((granter, queues), over) = (granter(), Rc::new(Cell::new(false)));
        let served = Served { controller: Rc::new(controller), queues, over: over.clone() };
        let controller = served.controller.clone();
        world.rt.spawn(async move {
            granter.serve(&controller).await;
            over.set(true);
        });
        served
    }

    async fn queue(&self, world: &World) -> Result<Mine, InitError> {
        let options = QueueOptions { depth: 4, ..QueueOptions::default() };
        self.queues.queue(&world.host, options).await
    }

    /// Takes every queue once to check that all are free, then gives them back and ends the service.
    async fn leave(self, world: &World) {
        let mut all = Vec::new();
        for _ in 0..QUEUES {
            all.push(self.queue(world).await.expect("all numbers are there again"));
        }
        let mut numbers: Vec<u16> = all.iter().map(|mine| mine.queue().qid().0).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2, 3]);
        let (asked, granted) = (u32::from(QUEUES) + 1, u32::from(QUEUES));
        let one_more = self.queue(world).await.err();
        assert_eq!(one_more, Some(InitError::TooFewQueues { asked, granted }));
        for mine in all {
            read(mine.queue(), 7).await.unwrap();
            mine.give_back().await.unwrap();
        }
        drop(self.queues);
        world.rt.sleep(Span::ms(2)).await;
        assert!(self.over.get(), "nobody is left, and serving goes on");
        self.controller.shutdown().await.unwrap();
    }
}

fn world(io: impl Fn(u64, &Request) -> Answer + 'static, aborts: Aborts) -> World {
    let queues = QUEUES.into();
    World::new(Traits { io: Box::new(io), aborts, queues, ..Traits::default() })
}

fn prompt(_: u64, _: &Request) -> Answer {
    Answer::After(Span::us(10))
}

/// Reads one block and verifies its data.
async fn read(queue: &Queue<SimHost>, lba: u64) -> Result<(), IoError> {
    let (buffer, result) = queue.read(Lba(lba), queue.buffer(BLOCK).unwrap()).await;
    let mut seen = vec![0; BLOCK];
    buffer.copy_out(0, &mut seen);
    assert!(result.is_err() || seen == pattern(lba), "LBA {lba}");
    result
}

/// A reset while a queue is requested, created, used, given back, and another is requested.
#[test]
fn reset_at_any_point_of_thread_queue_life() {
    // Finer steps in long runs.
    let steps: u64 = if std::env::var_os("DOORBELL_HEAVY").is_some() { 4000 } else { 80 };
    for step in 0..steps {
        let traits = Traits { io: Box::new(prompt), queues: QUEUES.into(), ..Traits::default() };
        // Every other run picks ready tasks at random.
        let shuffle = (step % 2 == 1).then_some(step);
        let world = World::with(traits, Setup { shuffle, ..Setup::default() });
        world.rt.block_on(async {
            let served = Served::start(&world, Options::default()).await;
            let used = world.host.arena().used_bytes();
            let (rt, controller) = (world.rt.clone(), served.controller.clone());
            world.rt.spawn(async move {
                rt.sleep(Span::us(1900) * step / steps).await;
                controller.reset().await.unwrap();
            });
            for _ in 0..2 {
                let mine = served.queue(&world).await.unwrap();
                assert_eq!(mine.queue().qid(), QueueId(1));
                for lba in 0..4 {
                    read(mine.queue(), lba).await.expect("submitted again");
                }
                assert_eq!(mine.queue().counters().protocol_errors, 0);
                mine.give_back().await.unwrap();
            }
            world.rt.sleep(Span::ms(30)).await;
            assert_eq!(served.controller.resets(), 1, "step {step}");
            assert_eq!(world.host.arena().used_bytes(), used, "step {step}");
            served.leave(&world).await;
        });
    }
}

/// After a drop at any await the queue identifier is freed, and memory known to the controller is
/// quarantined.
#[test]
fn thread_queue_futures_dropped_at_every_await() {
    for polls in 0.. {
        let world = world(prompt, Aborts::Work);
        let ended = world.rt.block_on(async {
            let served = Served::start(&world, Options::default()).await;
            let life = async {
                let mine = served.queue(&world).await.unwrap();
                let (other, rest) = (mine.queue().clone(), world.rt.clone());
                world.rt.spawn(async move {
                    // In flight when the queue is dropped or given back.
                    let kind = read(&other, 3).await.map_err(|error| error.kind);
                    assert!(matches!(kind, Ok(()) | Err(Kind::Gone | Kind::Closed)), "{kind:?}");
                });
                rest.sleep(Span::us(3)).await;
                mine.give_back().await.unwrap();
            };
            let ended = poll_times(life, polls).await.is_some();
            world.rt.sleep(Span::ms(1)).await;
            served.leave(&world).await;
            ended
        });
        if ended {
            assert!(polls > 4, "a life has its awaits");
            return;
        }
    }
}

/// A command that takes too long is aborted and retried; if the Abort fails, the controller is reset.
#[test]
fn hung_command_on_thread_queue_aborted_or_reset() {
    // After 9 checks, and again after 16 if the first Abort was answered.
    let tries = [(Aborts::Work, 1, 0), (Aborts::Fail, 2, 1), (Aborts::Silent, 1, 1)];
    for (aborts, tries, resets) in tries {
        let first_hangs = |number, _: &Request| match number {
            0 => Answer::Never,
            _ => Answer::After(Span::us(10)),
        };
        let world = world(first_hangs, aborts);
        world.rt.block_on(async {
            let timeout = Span::ms(2);
            let options = Options { timeout, admin_timeout: Span::ms(100), ..Options::default() };
            let served = Served::start(&world, options).await;
            let (mine, other) =
                (served.queue(&world).await.unwrap(), served.queue(&world).await.unwrap());
            read(mine.queue(), 3).await.expect("tried again");
            assert_eq!(mine.queue().counters().timeouts, 1);
            assert_eq!((served.controller.resets(), world.fake.aborts_seen.get()), (resets, tries));
            // The other thread's queue is hardly affected.
            read(other.queue(), 3).await.unwrap();
            mine.give_back().await.unwrap();
            other.give_back().await.unwrap();
            served.leave(&world).await;
        });
    }
}

/// The number of Aborts in flight never exceeds the controller's limit.
#[test]
fn deadlines_of_threads_respect_acl() {
    for acl in [0, 2] {
        let held = |_, request: &Request| match request.command {
            Command::Write(_) => Answer::Never,
            _ => Answer::After(Span::us(1)),
        };
        let world = world(held, Aborts::Work);
        world.fake.traits.borrow_mut().controller.acl = acl;
        world.rt.block_on(async {
            let served = Served::start(&world, Options::default()).await;
            let mut all = Vec::new();
            for _ in 0..QUEUES {
                all.push(served.queue(&world).await.unwrap());
            }
            let crowd = Crowd::new(&world.rt);
            for (number, mine) in all.iter().enumerate() {
                for place in 0..4 {
                    let (queue, at) = (mine.queue().clone(), Lba(number as u64 * 4 + place));
                    let deadline = world.rt.now() + Span::us(20);
                    crowd.spawn(async move {
                        let buffer = queue.buffer(BLOCK).unwrap();
                        queue.write_before(at, buffer, false, deadline).await.1
                    });
                }
            }
            for ended in crowd.all(Span::ms(50)).await {
                assert_eq!(ended.unwrap_err().kind, Kind::TimedOut);
            }
            assert_eq!(world.fake.aborts_at_once_max.get(), u32::from(acl) + 1);
            assert_eq!(world.fake.aborts_seen.get(), 12);
            for mine in all {
                mine.give_back().await.unwrap();
            }
            served.leave(&world).await;
        });
    }
}

/// The controller's thread ends first: by a shutdown, or abruptly.
#[test]
fn thread_queue_fails_after_controller_ends() {
    for shut_down in [true, false] {
        let world = world(|_, _| Answer::Never, Aborts::Work);
        world.rt.block_on(async {
            let options = Options { queues: QUEUES, timeout: Span::ZERO, ..Options::default() };
            let controller = Controller::start(world.host.clone(), options).await.unwrap();
            let (granter, queues) = granter();
            let over = Rc::new(Cell::new(false));
            let (rt, until) = (world.rt.clone(), over.clone());
            let controller = Rc::new(controller);
            let of = controller.clone();
            world.rt.spawn(async move {
                let ended = async {
                    while !until.get() {
                        rt.sleep(Span::us(50)).await;
                    }
                };
                let mut serving = std::pin::pin!(granter.serve(&of));
                runtime::race(&mut serving, ended).await;
            });
            let completion = Completion::Hybrid;
            let options = QueueOptions { completion, ..QueueOptions::default() };
            let mine = queues.queue(&world.host, options).await.unwrap();
            let crowd = Crowd::new(&world.rt);
            let queue = mine.queue().clone();
            crowd.spawn(async move { read(&queue, 1).await });
            world.rt.sleep(Span::us(30)).await;
            if shut_down {
                controller.shutdown().await.unwrap();
            } else {
                over.set(true);
            }
            let kind = if shut_down { Kind::Closed } else { Kind::Gone };
            let ended = crowd.all(Span::ms(5)).await;
            assert_eq!(
                ended.into_iter().map(|end| end.unwrap_err().kind).collect::<Vec<_>>(),
                [kind]
            );
            assert_eq!(read(mine.queue(), 1).await.unwrap_err().kind, kind);
            assert!(mine.give_back().await.is_err());
            over.set(true);
            world.rt.sleep(Span::us(100)).await;
            let one_more = queues.queue(&world.host, QueueOptions::default()).await;
            assert_eq!(one_more.err(), Some(InitError::Closed));
        });
    }
}

/// A device that is removed; the controller's thread finds it dead.
#[test]
fn device_gone_reported_to_every_thread() {
    let world = world(prompt, Aborts::Work);
    world.rt.block_on(async {
        let options = Options { timeout: Span::ms(8), ..Options::default() };
        let served = Served::start(&world, options).await;
        let mine = served.queue(&world).await.unwrap();
        read(mine.queue(), 1).await.unwrap();
        world.bus.take_link_down();
        world.rt.sleep(Span::ms(20)).await;
        assert!(served.controller.gone().is_some());
        assert_eq!(read(mine.queue(), 1).await.unwrap_err().kind, Kind::Gone);
        assert!(matches!(mine.give_back().await, Err(InitError::Gone { .. })));
        drop(served.queues);
        world.rt.sleep(Span::ms(2)).await;
        assert!(served.over.get());
    });
}
