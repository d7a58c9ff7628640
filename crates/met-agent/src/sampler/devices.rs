//! Cards: what jobs do with them, and their own courses.

use std::collections::HashMap;

use met_core::cards::{CardNow, Rows};
use met_core::course::Course;
use met_core::gpu::card::{self, label};
use met_core::holding::Holding;
use met_core::job::{JobKey, ProcessId};
use met_core::{MISSING, gpu};
use met_host::clock;
use met_sources::SOURCES;
use met_store::Device;

use super::Sampler;
use met_jobs::processes;

/// A card is sampled no more often than this for its own course.
const CARD_SAMPLES_MS: i64 = 900;
/// Bounds what a daemon that cannot write holds of each card: more than an hour.
const CARD_SAMPLES_MAX: usize = 4096;

/// How long after it was met the first process of a job is asked which cards it was given.
const ASKED_FOR_NS: i64 = 1_000_000_000;

impl Sampler {
    /// Tells the first process of a job that was found before it had one, and the cards that this was given as
    /// far as they are known: it may have ended.
    pub fn set_main(&mut self, slot: u32, main: ProcessId, holdings: Vec<Holding>) {
        let Some(job) = self.jobs.get_mut(&slot) else { return };
        job.main = Some((main, clock::boottime_ns()));
        if !holdings.is_empty() {
            self.cards.hold(slot, holdings);
        }
    }

    pub(super) fn follow_cards(&mut self, now_ns: i64) {
        let mut rows = Vec::new();
        for (batches, labels) in self.runner.labelled() {
            if let [cards, processes] = batches
                && std::ptr::eq(cards.table, &gpu::card::TABLE)
            {
                rows.push(Rows { cards, processes, labels });
            }
        }
        if rows.is_empty() {
            return;
        }
        for (&slot, job) in &mut self.jobs {
            // Between fork and exec a process still has its parent's environment, so a young one is asked again.
            if let Some((main, since_ns)) = job.main {
                let known = processes::holdings(&self.host, main);
                if !known.is_empty() {
                    self.cards.hold(slot, known);
                }
                if now_ns - since_ns >= ASKED_FOR_NS {
                    job.main = None;
                }
            }
        }
        let unix_offset_ns = clock::unix_offset_ns();
        self.cards.look(&rows, &self.map, now_ns, unix_offset_ns);
        self.keep_card_samples((now_ns + unix_offset_ns) / 1_000_000);
    }

    /// A card's own course is kept once, whoever uses it; what nobody holds, nobody asks for.
    fn keep_card_samples(&mut self, time_ms: i64) {
        const KEPT: [usize; 5] =
            [card::UTILIZATION, card::MEMORY_USED, card::POWER, card::TEMPERATURE, card::CLOCK];
        for (labels, cells) in self.cards.in_use() {
            let uuid = &labels[label::UUID];
            if !self.card_courses.contains_key(uuid) {
                self.card_courses.insert(uuid.clone(), Course::new(&card::TABLE));
            }
            let Some(course) = self.card_courses.get_mut(uuid) else { continue };
            let mut kept = [MISSING; card::TABLE.columns.len()];
            for column in KEPT {
                kept[column] = cells[column];
            }
            // Early looks at a young job, and a clock that was set back, add nothing to a card's course.
            let last_ms = course.times_ms.last().copied().unwrap_or(i64::MIN);
            if course.len() < CARD_SAMPLES_MAX && time_ms.saturating_sub(CARD_SAMPLES_MS) >= last_ms {
                course.push(time_ms, &kept);
            }
        }
    }

    /// The samples of cards taken since the last call, by uuid.
    pub fn drain_cards(&mut self) -> Vec<(String, Course)> {
        self.card_courses.drain().filter(|(_, course)| !course.is_empty()).collect()
    }

    /// The samples of a card that are not drained yet.
    pub fn undrained_card(&self, uuid: &str) -> Option<&Course> {
        self.card_courses.get(uuid)
    }

    /// What is known of cards and outlives this process.
    pub fn devices(&self) -> Vec<Device> {
        let device = |(labels, idle_mw, lowest_mw): (&[String], Option<i64>, Option<i64>)| Device {
            uuid: labels[label::UUID].clone(),
            name: labels[label::NAME].clone(),
            vendor: labels[label::VENDOR].clone(),
            idle_mw,
            lowest_mw,
        };
        self.cards.idle_powers().map(device).collect()
    }

    /// Tells what an earlier process learned about cards.
    pub fn recall_devices(&mut self, devices: Vec<Device>) {
        for device in devices {
            self.cards.recall_idle(device.uuid, device.idle_mw, device.lowest_mw);
        }
    }

    /// What went wrong with cards that should be here.
    pub fn card_troubles(&mut self) -> Vec<String> {
        let of_cards = |name: &str| {
            let spec = SOURCES.iter().find(|spec| spec.name == name);
            spec.is_some_and(|spec| spec.tables.iter().any(|table| std::ptr::eq(*table, &card::TABLE)))
        };
        let errors = self.runner.take_new_errors().into_iter().filter(|error| of_cards(error.source));
        let mut troubles: Vec<String> = errors.map(|error| error.message).collect();
        // A machine without cards of some maker is no trouble.
        let silent = self.runner.unavailable().iter().map(|(_, why)| why.to_string());
        troubles.extend(silent.filter(|why| why.contains(met_sources::NO_ANSWER)));
        troubles
    }

    pub fn has_cards(&self) -> bool {
        self.runner
            .labelled()
            .any(|(batches, _)| batches.iter().any(|batch| std::ptr::eq(batch.table, &gpu::card::TABLE)))
    }

    /// The cards as last seen, with the jobs by their keys.
    pub fn cards(&self) -> Vec<(CardNow<'_>, HashMap<u32, JobKey>)> {
        let keys = |card: &CardNow<'_>| {
            let users = card.processes.iter().filter_map(|&(_, slot, _, _)| slot);
            let slots = users.chain(card.holders.iter().map(|&(slot, _)| slot));
            slots.filter_map(|slot| Some((slot, self.jobs.get(&slot)?.key.clone()))).collect()
        };
        self.cards.now().map(|card| (card.clone(), keys(&card))).collect()
    }
}
