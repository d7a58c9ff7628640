//! The examples of docs/cli.md are run as they stand.

#[test]
fn the_documented_commands_do_what_the_page_says() {
    let state = tempfile::tempdir().unwrap();
    // The daemon that an example starts leaves soon after the test. A system daemon of this machine would number the jobs.
    let config = state.path().join("met.yaml");
    let [runtime, system] = ["run", "system"].map(|name| state.path().join(name));
    let text = format!(
        "daemon: {{idle_exit: 1s}}\nsystem: {{runtime: {}, state: {}}}\n",
        runtime.display(),
        system.display()
    );
    std::fs::write(&config, text).unwrap();
    trycmd::TestCases::new()
        .env("XDG_STATE_HOME", state.path().to_str().unwrap())
        .env("XDG_RUNTIME_DIR", state.path().to_str().unwrap())
        .env("XDG_CONFIG_HOME", state.path().to_str().unwrap())
        .env("MET_CONFIG", config.to_str().unwrap())
        .env("LC_ALL", "C.UTF-8")
        .case(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md"))
        .run();
}
