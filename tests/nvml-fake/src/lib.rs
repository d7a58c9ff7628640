//! Test only: exports the NVML symbols that the NVIDIA source uses, and answers what a script says.
//!
//! The script is the file `script` beside the library and is read at every call, so that a test can lose a
//! card or restart the driver in the middle. A test copies the library: each copy has its own script.
//!
//! ```text
//! driver 1                         another number: the driver was loaded anew, old handles are worthless
//! card 0 uuid=GPU-a name=Card power=300000 energy=1000 util=90 memory=5 total=80 temperature=50
//! part 0 uuid=MIG-a slices=3 memory=20 used=9 gi=1 ci=0
//! process 0 pid=100 memory=7 sm=60 gi=1 ci=0       with draws=1 it is one that does not compute
//! xid 0 number=79
//! clock 0 ahead_us=5000            samples of use bear a time that is later by so much
//! card 0 … gpm=1 sm_activity=96 sm_occupancy=14 tensor=93 bandwidth=17 pcie_rx=14 pcie_tx=5 nvlink_rx=2 nvlink_tx=1
//! error nvmlDeviceGetPowerUsage 1 15
//! delay nvmlDeviceGetPowerUsage 0 60000
//! ```
//!
//! `sm=20+40` are two samples of a process, the older one first. A delay, in milliseconds, ends early when its line goes. `*` is every call. A name without `_v2` or `_v3`
//! means the calls that have one, too.

#![allow(non_snake_case, clippy::missing_safety_doc, reason = "the names and contracts are NVIDIA's")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Mutex;

const OK: c_int = 0;
const UNINITIALIZED: c_int = 1;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
const TIMEOUT: c_int = 10;

/// A handle is a number: the card above the low byte, the part below, both counted from 1.
type Handle = usize;

struct State {
    /// The driver that is initialised; 0 is none.
    driver: u64,
    /// How often it was initialised and not shut down: as long as that is not 0 it stays what it is.
    users: u64,
    /// The card of each set of events, which is known by its place here, counted from 1.
    sets: Vec<Option<u64>>,
    /// Which lines about errors were told.
    xids_told: Vec<usize>,
}

static STATE: Mutex<State> =
    Mutex::new(State { driver: 0, users: 0, sets: Vec::new(), xids_told: Vec::new() });

fn beside(name: &str) -> Option<PathBuf> {
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = nvmlInit_v2 as *const c_void;
    if unsafe { libc::dladdr(here, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(path.to_bytes()));
    Some(path.parent()?.join(name))
}

/// A kind of line, the card it is about, and its pairs.
type Line = (String, u64, Vec<(String, String)>);

struct Script {
    lines: Vec<Line>,
    errors: Vec<(String, u64, c_int)>,
    delays: Vec<(String, u64, c_int)>,
}

impl Script {
    fn read() -> Script {
        let text = beside("script").and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let mut script = Script { lines: Vec::new(), errors: Vec::new(), delays: Vec::new() };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let Some(kind) = words.next() else { continue };
            if kind == "error" || kind == "delay" {
                let (Some(call), Some(card), Some(code)) = (words.next(), words.next(), words.next()) else {
                    continue;
                };
                if let (Ok(card), Ok(code)) = (card.parse(), code.parse()) {
                    let list = if kind == "error" { &mut script.errors } else { &mut script.delays };
                    list.push((call.to_owned(), card, code));
                }
                continue;
            }
            let number = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            let pairs = words.filter_map(|word| word.split_once('='));
            let pairs = pairs.map(|(key, value)| (key.to_owned(), value.replace('_', " "))).collect();
            script.lines.push((kind.to_owned(), number, pairs));
        }
        script
    }

    fn driver(&self) -> u64 {
        self.of("driver").map(|(number, _)| number).next().unwrap_or(1)
    }

    fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (u64, &'a [(String, String)])> {
        self.lines.iter().filter(move |line| line.0 == kind).map(|line| (line.1, line.2.as_slice()))
    }

    fn cards(&self) -> usize {
        self.of("card").count()
    }

    fn parts(&self, card: usize) -> Vec<&[(String, String)]> {
        self.of("part").filter(|(number, _)| *number == card as u64).map(|(_, pairs)| pairs).collect()
    }

    fn pairs(&self, handle: Handle) -> Option<&[(String, String)]> {
        let (card, part) = split(handle);
        match part {
            Some(part) => self.parts(card).get(part).copied(),
            None => self.of("card").find(|(number, _)| *number == card as u64).map(|(_, pairs)| pairs),
        }
    }
}

fn split(handle: Handle) -> (usize, Option<usize>) {
    ((handle >> 8) - 1, (handle & 0xff).checked_sub(1))
}

fn text_of<'a>(pairs: &'a [(String, String)], key: &str) -> Option<&'a str> {
    pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

fn number_of(pairs: &[(String, String)], key: &str) -> Option<u64> {
    text_of(pairs, key)?.parse().ok()
}

/// What the script has for a call and a card.
fn planned(lines: &[(String, u64, c_int)], name: &str, card: u64) -> Option<c_int> {
    let plain = name.strip_suffix("_v2").or_else(|| name.strip_suffix("_v3"));
    let is_meant = |call: &str| call == "*" || call == name || Some(call) == plain;
    lines.iter().find(|(call, at, _)| is_meant(call) && *at == card).map(|&(_, _, number)| number)
}

/// Does not return while the script says so.
fn hang(name: &str, card: u64) {
    let begin = std::time::Instant::now();
    let lasts = |ms: c_int| begin.elapsed().as_millis() < ms.max(0) as u128;
    while planned(&Script::read().delays, name, card).is_some_and(lasts) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Runs `answer` unless the script has an error for this call and card, or the driver is another one.
fn call(name: &str, handle: Handle, answer: impl FnOnce(&Script) -> c_int) -> c_int {
    let card = if handle == 0 { u64::MAX } else { split(handle).0 as u64 };
    hang(name, card);
    let script = Script::read();
    if STATE.lock().map_or(0, |state| state.driver) != script.driver() {
        return UNINITIALIZED;
    }
    match planned(&script.errors, name, card) {
        Some(code) => code,
        None => answer(&script),
    }
}

/// Answers with one number of a card, if the script gives it.
fn give<T: TryFrom<u64>>(name: &str, handle: Handle, key: &str, out: *mut T) -> c_int {
    call(name, handle, |script| {
        let Some(pairs) = script.pairs(handle) else { return INVALID_ARGUMENT };
        match number_of(pairs, key).and_then(|number| T::try_from(number).ok()) {
            Some(number) => {
                unsafe { out.write(number) };
                OK
            }
            None => NOT_SUPPORTED,
        }
    })
}

fn give_text(name: &str, handle: Handle, key: &str, out: *mut c_char, room: c_uint) -> c_int {
    call(name, handle, |script| {
        let Some(text) = script.pairs(handle).and_then(|pairs| text_of(pairs, key)) else {
            return NOT_SUPPORTED;
        };
        if text.len() + 1 > room as usize {
            return INSUFFICIENT_SIZE;
        }
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
            out.add(text.len()).write(0);
        }
        OK
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    let script = Script::read();
    if let Some((_, _, code)) = script.errors.iter().find(|(call, _, _)| call == "nvmlInit") {
        return *code;
    }
    hang("nvmlInit", 0);
    if let Ok(mut state) = STATE.lock() {
        state.users += 1;
        if state.users == 1 {
            state.driver = script.driver();
        }
    }
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    hang("nvmlShutdown", 0);
    let Ok(mut state) = STATE.lock() else { return UNINITIALIZED };
    if state.users == 0 {
        return UNINITIALIZED;
    }
    state.users -= 1;
    if state.users == 0 {
        state.driver = 0;
        // Tests may want to know.
        if let Some(path) = beside("shut_down") {
            let _ = std::fs::write(path, "");
        }
    }
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> c_int {
    call("nvmlDeviceGetCount", 0, |script| {
        unsafe { out.write(script.cards() as c_uint) };
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut Handle) -> c_int {
    let handle = (index as usize + 1) << 8;
    call("nvmlDeviceGetHandleByIndex", handle, |script| {
        if index as usize >= script.cards() {
            return INVALID_ARGUMENT;
        }
        unsafe { out.write(handle) };
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(handle: Handle, out: *mut c_char, room: c_uint) -> c_int {
    give_text("nvmlDeviceGetUUID", handle, "uuid", out, room)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(handle: Handle, out: *mut c_char, room: c_uint) -> c_int {
    give_text("nvmlDeviceGetName", handle, "name", out, room)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(handle: Handle, out: *mut c_uint) -> c_int {
    unsafe { out.write(split(handle).0 as c_uint) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(handle: Handle, out: *mut c_uint) -> c_int {
    give("nvmlDeviceGetPowerUsage", handle, "power", out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(handle: Handle, out: *mut c_ulonglong) -> c_int {
    give("nvmlDeviceGetTotalEnergyConsumption", handle, "energy", out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(handle: Handle, out: *mut c_uint) -> c_int {
    give("nvmlDeviceGetEnforcedPowerLimit", handle, "limit", out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPcieThroughput(
    handle: Handle,
    kind: c_uint,
    out: *mut c_uint,
) -> c_int {
    give("nvmlDeviceGetPcieThroughput", handle, if kind == 0 { "sent" } else { "received" }, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEncoderUtilization(
    handle: Handle,
    out: *mut c_uint,
    _period_us: *mut c_uint,
) -> c_int {
    give("nvmlDeviceGetEncoderUtilization", handle, "encoder", out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetDecoderUtilization(
    handle: Handle,
    out: *mut c_uint,
    _period_us: *mut c_uint,
) -> c_int {
    give("nvmlDeviceGetDecoderUtilization", handle, "decoder", out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    handle: Handle,
    _sensor: c_uint,
    out: *mut c_uint,
) -> c_int {
    give("nvmlDeviceGetTemperature", handle, "temperature", out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(handle: Handle, kind: c_uint, out: *mut c_uint) -> c_int {
    give("nvmlDeviceGetClockInfo", handle, if kind == 2 { "clock_memory" } else { "clock" }, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    handle: Handle,
    out: *mut c_ulonglong,
) -> c_int {
    give("nvmlDeviceGetCurrentClocksThrottleReasons", handle, "throttle", out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(handle: Handle, out: *mut [c_uint; 2]) -> c_int {
    let mut used = 0u32;
    let code = give("nvmlDeviceGetUtilizationRates", handle, "util", &mut used);
    if code == OK {
        unsafe { out.write([used, used / 2]) };
    }
    code
}

#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: Handle, out: *mut Memory) -> c_int {
    let (code, used, total) = memory("nvmlDeviceGetMemoryInfo_v2", handle);
    if code == OK {
        unsafe { ((*out).total, (*out).used, (*out).free) = (total, used, total.saturating_sub(used)) };
    }
    code
}

#[repr(C)]
pub struct OldMemory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(handle: Handle, out: *mut OldMemory) -> c_int {
    let (code, used, total) = memory("nvmlDeviceGetMemoryInfo", handle);
    if code == OK {
        unsafe { out.write(OldMemory { total, free: total.saturating_sub(used), used }) };
    }
    code
}

/// What is used of all there is. A part has its size in megabytes.
fn memory(name: &str, handle: Handle) -> (c_int, u64, u64) {
    let is_part = split(handle).1.is_some();
    let keys = if is_part { ["used", "memory"] } else { ["memory", "total"] };
    let mut numbers = [0u64; 2];
    for (key, number) in keys.into_iter().zip(&mut numbers) {
        let code = give(name, handle, key, number);
        if code != OK {
            return (code, 0, 0);
        }
    }
    (OK, numbers[0], if is_part { numbers[1] << 20 } else { numbers[1] })
}

#[repr(C)]
pub struct ProcessInfo {
    pid: c_uint,
    memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: Handle,
    count: *mut c_uint,
    out: *mut ProcessInfo,
) -> c_int {
    list_processes("nvmlDeviceGetComputeRunningProcesses_v3", handle, count, |position, info| unsafe {
        out.add(position).write(info);
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    handle: Handle,
    count: *mut c_uint,
    out: *mut ProcessInfo,
) -> c_int {
    list_processes("nvmlDeviceGetGraphicsRunningProcesses_v3", handle, count, |position, info| unsafe {
        out.add(position).write(info);
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    handle: Handle,
    count: *mut c_uint,
    out: *mut ProcessInfo,
) -> c_int {
    list_processes("nvmlDeviceGetComputeRunningProcesses_v2", handle, count, |position, info| unsafe {
        out.add(position).write(info);
    })
}

#[repr(C)]
pub struct OldProcessInfo {
    pid: c_uint,
    memory: c_ulonglong,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    handle: Handle,
    count: *mut c_uint,
    out: *mut OldProcessInfo,
) -> c_int {
    list_processes("nvmlDeviceGetComputeRunningProcesses", handle, count, |position, info| unsafe {
        out.add(position).write(OldProcessInfo { pid: info.pid, memory: info.memory });
    })
}

fn list_processes(name: &str, handle: Handle, count: *mut c_uint, put: impl Fn(usize, ProcessInfo)) -> c_int {
    call(name, handle, |script| {
        let card = split(handle).0 as u64;
        let draws = name.contains("Graphics");
        let is_meant = |pairs: &[(String, String)]| {
            number_of(pairs, "ended").is_none() && number_of(pairs, "draws").is_some() == draws
        };
        let found: Vec<_> =
            script.of("process").filter(|(number, pairs)| *number == card && is_meant(pairs)).collect();
        let room = unsafe { count.read() } as usize;
        unsafe { count.write(found.len() as c_uint) };
        if found.len() > room {
            return INSUFFICIENT_SIZE;
        }
        for (position, (_, pairs)) in found.iter().enumerate() {
            let id = |key: &str| number_of(pairs, key).map_or(u32::MAX, |id| id as u32);
            let info = ProcessInfo {
                pid: id("pid"),
                memory: number_of(pairs, "memory").unwrap_or(u64::MAX),
                gpu_instance: id("gi"),
                compute_instance: id("ci"),
            };
            put(position, info);
        }
        OK
    })
}

#[repr(C)]
pub struct Utilization {
    pid: c_uint,
    time_us: c_ulonglong,
    sm: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    handle: Handle,
    out: *mut Utilization,
    count: *mut c_uint,
    since_us: c_ulonglong,
) -> c_int {
    call("nvmlDeviceGetProcessUtilization", handle, |script| {
        let card = split(handle).0 as u64;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let ahead_us = script.of("clock").find_map(|(_, pairs)| number_of(pairs, "ahead_us")).unwrap_or(0);
        let now_us = u64::try_from(now.as_micros()).unwrap_or(0) + ahead_us;
        // What bears an older time is not told.
        if now_us <= since_us {
            return NOT_FOUND;
        }
        let mut found: Vec<Utilization> = Vec::new();
        for (_, pairs) in script.of("process").filter(|(number, _)| *number == card) {
            let samples = text_of(pairs, "sm").unwrap_or("").split('+');
            let samples: Vec<u32> = samples.filter_map(|sm| sm.parse().ok()).filter(|sm| *sm > 0).collect();
            for (age, &sm) in (0u64..).zip(samples.iter().rev()) {
                // They lie between the call before and this one, equally far apart.
                let apart_us = (now_us - since_us).min(1_000_000) / samples.len() as u64;
                found.push(Utilization {
                    pid: number_of(pairs, "pid").unwrap_or(0) as u32,
                    time_us: now_us - age * apart_us,
                    sm,
                    memory: 0,
                    encoder: 0,
                    decoder: 0,
                });
            }
        }
        if found.is_empty() {
            return NOT_FOUND;
        }
        if found.len() > unsafe { count.read() } as usize {
            unsafe { count.write(found.len() as c_uint) };
            return INSUFFICIENT_SIZE;
        }
        unsafe { count.write(found.len() as c_uint) };
        for (position, sample) in found.into_iter().enumerate() {
            unsafe { out.add(position).write(sample) };
        }
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    handle: Handle,
    kind: c_uint,
    _counter: c_uint,
    out: *mut c_ulonglong,
) -> c_int {
    give("nvmlDeviceGetTotalEccErrors", handle, if kind == 0 { "ecc" } else { "ecc_bad" }, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(handle: Handle, now: *mut c_uint, next: *mut c_uint) -> c_int {
    call("nvmlDeviceGetMigMode", handle, |script| {
        let on = c_uint::from(!script.parts(split(handle).0).is_empty());
        unsafe {
            now.write(on);
            next.write(on);
        }
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(_handle: Handle, out: *mut c_uint) -> c_int {
    unsafe { out.write(7) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    handle: Handle,
    index: c_uint,
    out: *mut Handle,
) -> c_int {
    call("nvmlDeviceGetMigDeviceHandleByIndex", handle, |script| {
        if index as usize >= script.parts(split(handle).0).len() {
            return NOT_FOUND;
        }
        unsafe { out.write(handle + index as usize + 1) };
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(handle: Handle, out: *mut c_uint) -> c_int {
    give("nvmlDeviceGetGpuInstanceId", handle, "gi", out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeInstanceId(handle: Handle, out: *mut c_uint) -> c_int {
    give("nvmlDeviceGetComputeInstanceId", handle, "ci", out)
}

#[repr(C)]
pub struct Attributes {
    counts: [c_uint; 6],
    gpu_instance_slices: c_uint,
    compute_instance_slices: c_uint,
    memory_mb: c_ulonglong,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetAttributes_v2(handle: Handle, out: *mut Attributes) -> c_int {
    let (mut slices, mut memory_mb) = (0u32, 0u64);
    let code = give("nvmlDeviceGetAttributes", handle, "slices", &mut slices);
    if code != OK || give("nvmlDeviceGetAttributes", handle, "memory", &mut memory_mb) != OK {
        return NOT_SUPPORTED;
    }
    let attributes = Attributes {
        counts: [0; 6],
        gpu_instance_slices: slices,
        compute_instance_slices: slices,
        memory_mb,
    };
    unsafe { out.write(attributes) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(out: *mut Handle) -> c_int {
    let Ok(mut state) = STATE.lock() else { return UNINITIALIZED };
    state.sets.push(None);
    unsafe { out.write(state.sets.len()) };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: Handle) -> c_int {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(handle: Handle, _kinds: c_ulonglong, set: Handle) -> c_int {
    call("nvmlDeviceRegisterEvents", handle, |_| {
        let Ok(mut state) = STATE.lock() else { return UNINITIALIZED };
        state.sets[set - 1] = Some(split(handle).0 as u64);
        OK
    })
}

#[repr(C)]
pub struct Event {
    handle: Handle,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(set: Handle, out: *mut Event, _timeout_ms: c_uint) -> c_int {
    let of_set = STATE.lock().ok().and_then(|state| state.sets[set - 1]);
    let Some(card) = of_set else { return TIMEOUT };
    hang("nvmlEventSetWait_v2", card);
    let script = Script::read();
    let Ok(mut state) = STATE.lock() else { return TIMEOUT };
    let is_new = |(line, (of, _)): &(usize, (u64, _))| *of == card && !state.xids_told.contains(line);
    let Some((line, (_, pairs))) = script.of("xid").enumerate().find(is_new) else { return TIMEOUT };
    state.xids_told.push(line);
    let event = Event {
        handle: (card as usize + 1) << 8,
        kind: 8,
        data: number_of(pairs, "number").unwrap_or(0),
        gpu_instance: u32::MAX,
        compute_instance: u32::MAX,
    };
    unsafe { out.write(event) };
    OK
}

#[repr(C)]
pub struct GpmSupport {
    version: c_uint,
    is_supported: c_uint,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmQueryDeviceSupport(handle: Handle, out: *mut GpmSupport) -> c_int {
    call("nvmlGpmQueryDeviceSupport", handle, |script| {
        let Some(pairs) = script.pairs(handle) else { return INVALID_ARGUMENT };
        unsafe { (*out).is_supported = number_of(pairs, "gpm").unwrap_or(0) as c_uint };
        OK
    })
}

/// A sample is the handle of what it is of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleAlloc(out: *mut *mut Handle) -> c_int {
    unsafe { out.write(Box::into_raw(Box::new(0))) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleFree(sample: *mut Handle) -> c_int {
    drop(unsafe { Box::from_raw(sample) });
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmSampleGet(handle: Handle, sample: *mut Handle) -> c_int {
    call("nvmlGpmSampleGet", handle, |_| {
        unsafe { sample.write(handle) };
        OK
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMigSampleGet(handle: Handle, instance: c_uint, sample: *mut Handle) -> c_int {
    call("nvmlGpmMigSampleGet", handle, |script| {
        let parts = script.parts(split(handle).0);
        let is_meant = |pairs: &&[(String, String)]| number_of(pairs, "gi") == Some(u64::from(instance));
        let Some(part) = parts.iter().position(is_meant) else { return INVALID_ARGUMENT };
        unsafe { sample.write(handle | (part + 1)) };
        OK
    })
}

#[repr(C)]
pub struct GpmMetric {
    id: c_uint,
    code: c_int,
    value: f64,
    texts: [*const c_char; 3],
}

#[repr(C)]
pub struct GpmRequest {
    version: c_uint,
    count: c_uint,
    samples: [*mut Handle; 2],
    metrics: [GpmMetric; 210],
}

const GPM_KEYS: [(c_uint, &str); 8] = [
    (2, "sm_activity"),
    (3, "sm_occupancy"),
    (5, "tensor"),
    (10, "bandwidth"),
    (20, "pcie_tx"),
    (21, "pcie_rx"),
    (60, "nvlink_rx"),
    (61, "nvlink_tx"),
];

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMetricsGet(request: *mut GpmRequest) -> c_int {
    let request = unsafe { &mut *request };
    let [first, second] = request.samples.map(|sample| unsafe { *sample });
    if first != second {
        return INVALID_ARGUMENT;
    }
    call("nvmlGpmMetricsGet", second, |script| {
        let Some(pairs) = script.pairs(second) else { return INVALID_ARGUMENT };
        for metric in &mut request.metrics[..request.count as usize] {
            let key = GPM_KEYS.iter().find(|(id, _)| *id == metric.id).map(|(_, key)| *key);
            let value = key.and_then(|key| number_of(pairs, key));
            (metric.code, metric.value) = value.map_or((NOT_SUPPORTED, 0.0), |value| (OK, value as f64));
        }
        OK
    })
}
