//! The examples of docs/cli.md are run as they stand.

#[test]
fn the_documented_commands_do_what_the_page_says() {
    let state = tempfile::tempdir().unwrap();
    // The daemon that an example starts leaves soon after the test.
    let config = state.path().join("met.yaml");
    std::fs::write(&config, "daemon: {idle_exit: 1s}\n").unwrap();
    trycmd::TestCases::new()
        .env("XDG_STATE_HOME", state.path().to_str().unwrap())
        .env("XDG_RUNTIME_DIR", state.path().to_str().unwrap())
        .env("XDG_CONFIG_HOME", state.path().to_str().unwrap())
        .env("MET_CONFIG", config.to_str().unwrap())
        .env("LC_ALL", "C.UTF-8")
        .case(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md"))
        .run();
}
