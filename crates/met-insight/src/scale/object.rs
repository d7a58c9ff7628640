//! The answers of `met scale` for programs.

use met_core::job::Record;
use serde_json::{Value, json};

use super::{Bounds, Fit, Headroom, Interval, Plan, Prediction};

fn bounds(bounds: &Bounds) -> Value {
    let ceiling = |of: &Headroom| {
        json!({
            "resource": of.resource,
            "used": of.used,
            "ceiling": of.ceiling,
            "from": of.from.name(),
            "used_ratio": of.share(),
        })
    };
    json!({
        "size": bounds.size,
        "cores": bounds.cores,
        "cores_p95": bounds.cores_p95,
        "serial_time_ratio": bounds.serial_time,
        "serial_ratio_max": bounds.serial_high,
        "speedup_limit_min": bounds.speedup_limit_min,
        "headroom": bounds.words(),
        "ceilings": bounds.headroom.iter().map(ceiling).collect::<Vec<_>>(),
        "first_limit": bounds.first_limit().map(|of| of.resource),
    })
}

pub fn object(record: &Record, plan: &Plan, left_out: &[String]) -> Value {
    let interval = |of: &Interval| json!({ "low": of.low, "value": of.value, "high": of.high });
    let model = plan.scaling.as_ref().ok().map(|model| {
        let sizes = model
            .sizes
            .iter()
            .map(|(size, seconds, runs)| json!({ "size": size, "seconds": seconds, "runs": runs }));
        json!({
            "model": model.model.name(),
            "serial_ratio": interval(&model.serial),
            "coherency": interval(&model.coherency),
            "sizes": sizes.collect::<Vec<_>>(),
            "size_min": model.size_min,
            "size_max": model.size_max,
            "efficient_size": model.efficient_size(),
            "fastest_size": model.best_size(),
        })
    });
    let prediction = |of: &Prediction| {
        json!({
            "size": of.size,
            "seconds": of.seconds.as_ref().map(interval),
            "speedup": of.speedup.as_ref().map(interval),
            "energy_joules": of.joules,
            "emissions_grams": of.grams,
            "money": of.money,
        })
    };
    let fit = |of: &Fit| {
        json!({
            "name": of.name,
            "fits": of.fits,
            "notes": of.notes,
            "size": of.size,
            "seconds": of.seconds.as_ref().map(interval),
            "price": of.price,
        })
    };
    json!({
        "job": record.label(),
        "left_out": left_out,
        "bounds": plan.bounds.as_ref().map(bounds),
        "scaling": model,
        "cannot_tell": plan.scaling.as_ref().err().map(|cannot| json!({
            "why": cannot.why,
            "run_next": cannot.run_next,
        })),
        "predictions": plan.predictions.iter().map(prediction).collect::<Vec<_>>(),
        "target": plan.target.map(|(seconds, size)| json!({ "seconds": seconds, "size": size })),
        "systems": plan.systems.iter().map(fit).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Run, System, Wishes, plan};
    use super::*;
    use crate::sample;

    fn keys(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(entries) => entries.iter().for_each(|(key, value)| {
                found.push(key.clone());
                keys(value, found);
            }),
            Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_page_about_the_object_has_every_key() {
        let page = include_str!("../../../../docs/json.md");
        let (_, page) = page.split_once("## The object of `met scale --json`").unwrap();
        let (page, _) = page.split_once("\n## ").unwrap();
        let times = [(1.0, 1000.0), (2.0, 550.0), (4.0, 325.0), (1.0, 1001.0), (2.0, 551.0), (4.0, 326.0)];
        let runs = times.map(|(size, seconds)| Run { size, seconds });
        let bounds = Bounds {
            size: 4.0,
            cores: 3.0,
            cores_p95: None,
            serial_time: None,
            serial_high: None,
            speedup_limit_min: None,
            headroom: Vec::new(),
            storage_wait: None,
            is_busy_elsewhere: false,
        };
        let wishes = Wishes { sizes: vec![8.0], target_s: Some(400.0) };
        let (record, systems) = (sample::finished(), [System::default()]);
        let whole = plan(&runs, &[], Some(bounds), &record, &systems, &wishes);
        let unknown = plan(&runs[..1], &[], None, &record, &[], &wishes);
        let mut found = Vec::new();
        keys(&json!([object(&record, &whole, &[]), object(&record, &unknown, &[])]), &mut found);
        assert!(found.contains(&"fastest_size".to_owned()) && found.contains(&"run_next".to_owned()));
        for key in found {
            let is_there = ["`", "."].iter().any(|before| page.contains(&format!("{before}{key}`")));
            assert!(is_there, "docs/json.md lacks {key} of met scale");
        }
    }
}
