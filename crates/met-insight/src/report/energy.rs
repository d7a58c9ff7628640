//! Energy by part of the machine, emissions and cost.

use met_core::job_table as column;

use super::reader::Reader;
use super::{Detail, Measure, Section};

pub(super) fn energy(job: &Reader<'_>) -> Section {
    let mut section = Section::new("Energy");
    // Energy of GPUs alone is shown with them.
    if job.figure(column::ENERGY).is_none() {
        return section;
    }
    let some = |index: usize| job.total(index).filter(|amount| amount.value > 0.0);
    let power = job.rate(column::ENERGY, Measure::Watts);
    let source = job.figure(column::ENERGY).map(|figure| figure.source.to_string());
    let details = [Detail::after(power, "average"), Detail::text(source)];
    section.put("energy", job.total(column::ENERGY), details);
    let idle = some(column::ENERGY_IDLE);
    section.put("idle part", idle, [Detail::words("for CPUs and GPUs that the job holds")]);
    section.put("CPU energy", some(column::ENERGY_CPU), []);
    section.put("memory energy", some(column::ENERGY_MEMORY), []);
    let idle_part = Detail::before("idle part", some(column::GPU_ENERGY_IDLE));
    section.put("GPU energy", some(column::GPU_ENERGY), [idle_part]);
    section.put(
        "other energy",
        some(column::ENERGY_REST),
        [Detail::words(
            "board, fans, disks, power \
        supply",
        )],
    );
    let factor = job.record.emission.as_ref().map(|emission| {
        let grams = emission.factor_mg_per_kwh as f64 / 1e3;
        let building = emission.pue().filter(|pue| *pue != 1.0);
        let building = building.map_or(String::new(), |pue| format!(", PUE {pue}"));
        format!("CO2e at {grams} g/kWh, {}{building}", emission.factor_source)
    });
    section.put("emissions", job.total(column::EMISSIONS), [Detail::text(factor)]);
    let price = job.figure(column::COST).map(|figure| figure.source.to_string());
    section.put("cost", job.total(column::COST), [Detail::text(price)]);
    section
}
