//! The machines of the configuration on which a job could run.

use met_config::Config;
use met_insight::scale::System;

pub fn of(config: &Config) -> Vec<System> {
    let system = config.systems.iter().map(|of| System {
        name: of.name.clone(),
        cores: of.cores,
        memory_bytes: of.memory_bytes,
        gpus: of.gpus,
        gpu_maker: of.gpu_maker.clone(),
        gpu_memory_bytes: of.gpu_memory_bytes,
        storage_rate: of.storage_rate.map(|rate| rate as f64),
        core_hour: of.core_hour,
        gpu_hour: of.gpu_hour,
    });
    system.collect()
}
