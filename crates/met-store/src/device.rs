//! Devices that jobs share: what is known of each, which job had which from when to when, and their series.

use met_core::job::{GpuUse, JobKey, Record};

use crate::error::StoreError;
use crate::record::{EXACT, key_values, returned};
use crate::sql::{self, Sql, Value};

type Result<T> = std::result::Result<T, StoreError>;

/// Takes the place of the manager in a key: no manager has this name, so a device is never taken for a job.
pub(crate) const DEVICE: &str = "device";

/// What outlives a process that sampled a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub uuid: String,
    pub name: String,
    pub vendor: String,
    /// The lowest power seen while it did nothing, and the lowest seen at all.
    pub idle_mw: Option<i64>,
    pub lowest_mw: Option<i64>,
}

/// A device that a job had, from when to when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub uuid: String,
    pub begin_ns: i64,
    /// `None` while the job lives.
    pub end_ns: Option<i64>,
    pub held_by: String,
}

/// What is known of all devices.
pub(crate) fn all(sql: &dyn Sql) -> Result<Vec<Device>> {
    let statement = "SELECT uuid, name, vendor, idle_mw, lowest_mw FROM device ORDER BY key";
    sql::all(sql, statement, &[], |row| {
        Ok(Device {
            uuid: row.get(0).text()?.to_owned(),
            name: row.get(1).text()?.to_owned(),
            vendor: row.get(2).text()?.to_owned(),
            idle_mw: row.get(3).known().map(Value::integer).transpose()?,
            lowest_mw: row.get(4).known().map(Value::integer).transpose()?,
        })
    })
}

/// The devices that a job had.
pub(crate) fn allocations(sql: &dyn Sql, key: &JobKey) -> Result<Vec<Allocation>> {
    let statement = format!(
        "SELECT uuid, begin_ns, allocation.end_ns, held_by FROM job
         JOIN allocation ON allocation.job = job.key JOIN device ON device.key = allocation.device
         WHERE {EXACT} ORDER BY allocation.device"
    );
    sql::all(sql, &statement, &key_values(key), |row| {
        Ok(Allocation {
            uuid: row.get(0).text()?.to_owned(),
            begin_ns: row.get(1).integer()?,
            end_ns: row.get(2).known().map(Value::integer).transpose()?,
            held_by: row.get(3).text()?.to_owned(),
        })
    })
}

/// Under which key the series of a node's GPU are kept on a server: no node writes to the GPUs of others.
pub fn device_on(node: &str, uuid: &str) -> JobKey {
    JobKey { cluster: Some(node.to_owned()), ..series_key(uuid) }
}

pub(crate) fn series_key(uuid: &str) -> JobKey {
    JobKey { cluster: None, manager: DEVICE.to_owned(), id: uuid.to_owned(), incarnation: 0 }
}

/// Writes what is known of a device, and returns its key. What is not known leaves what was.
pub(crate) fn put(sql: &dyn Sql, device: &Device) -> Result<i64> {
    let Device { uuid, name, vendor, idle_mw, lowest_mw } = device;
    returned(
        sql,
        "INSERT INTO device (uuid, name, vendor, idle_mw, lowest_mw) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (uuid) DO UPDATE SET
             name = excluded.name, vendor = excluded.vendor,
             idle_mw = coalesce(excluded.idle_mw, device.idle_mw),
             lowest_mw = coalesce(excluded.lowest_mw, device.lowest_mw)
         RETURNING key",
        &[uuid.into(), name.into(), vendor.into(), (*idle_mw).into(), (*lowest_mw).into()],
    )
}

fn key_of(sql: &dyn Sql, usage: &GpuUse) -> Result<i64> {
    let find = "SELECT key FROM device WHERE uuid = ?1";
    match sql::first(sql, find, &[(&usage.uuid).into()], |row| row.get(0).integer())? {
        Some(key) => Ok(key),
        None => put(
            sql,
            &Device {
                uuid: usage.uuid.clone(),
                name: usage.name.clone(),
                vendor: usage.vendor.clone(),
                ..Device::default()
            },
        ),
    }
}

/// Writes which devices a job has had; `job` is its key in the catalogue.
pub(crate) fn allocate(sql: &dyn Sql, job: i64, record: &Record) -> Result<()> {
    for usage in record.gpus.iter().filter(|usage| !usage.uuid.is_empty()) {
        let device = key_of(sql, usage)?;
        let begin_ns = usage.held_since_ns.or(record.start_ns).unwrap_or(0);
        sql.execute(
            "INSERT INTO allocation (job, device, begin_ns, end_ns, held_by) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (job, device) DO UPDATE SET
                 begin_ns = CASE WHEN excluded.begin_ns < allocation.begin_ns THEN excluded.begin_ns
                            ELSE allocation.begin_ns END,
                 end_ns = excluded.end_ns, held_by = excluded.held_by",
            &[job.into(), device.into(), begin_ns.into(), record.end_ns.into(), usage.held_by.text().into()],
        )?;
    }
    Ok(())
}
