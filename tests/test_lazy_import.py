"""What `import lockstep` does and does not do, each in a fresh process."""

import os
import subprocess
import sys
import textwrap

import pytest


def run(code, **variables):
    env = {name: value for name, value in os.environ.items() if name not in ("KERAS_BACKEND", "XLA_FLAGS")}
    env.update(variables)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, timeout=120
    )


def test_neither_jax_nor_keras_is_imported():
    done = run(
        """
        import os, sys
        import lockstep, lockstep.errors, lockstep.topology, lockstep.strategies.input
        assert lockstep.__version__
        assert os.environ["KERAS_BACKEND"] == "jax"
        assert not {"jax", "keras", "ray", "tensorboardX", "orbax", "grain"} & set(sys.modules), sorted(sys.modules)
        assert "strategies" in dir(lockstep)
        """
    )
    assert done.returncode == 0, done.stderr


def test_the_backend_is_chosen_over_the_one_in_the_home_folder(tmp_path):
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text('{"backend": "torch"}')
    done = run(
        "import lockstep, keras; print(keras.config.backend())", HOME=str(tmp_path), KERAS_HOME=str(tmp_path / ".keras")
    )
    assert done.stdout == "jax\n", done.stderr


def test_keras_on_another_backend_is_refused_with_what_to_do():
    code = """
        import types, sys
        keras = types.ModuleType("keras")
        keras.config = types.SimpleNamespace(backend=lambda: "torch")
        sys.modules["keras"] = keras
        import lockstep
        """
    done = run(code)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == (
        "lockstep.errors.BackendError: Keras was imported on another backend than JAX; received 'torch'; allowed: jax; "
        "import lockstep before keras, or set KERAS_BACKEND=jax"
    )


@pytest.mark.parametrize("room", ["strategies", "training", "checkpoints"])
def test_a_variable_that_names_another_backend_is_refused_where_keras_is_needed(room):
    done = run(f"import lockstep; print(lockstep.topology.__name__); lockstep.{room}", KERAS_BACKEND="torch")
    assert done.stdout == "lockstep.topology\n"
    assert "KERAS_BACKEND names another backend than JAX; received 'torch'" in done.stderr.splitlines()[-1]


def test_an_unknown_name_is_an_attribute_error():
    done = run("import lockstep; lockstep.no_such_room")
    assert "AttributeError: module 'lockstep' has no attribute 'no_such_room'" in done.stderr


@pytest.mark.heavy
def test_devices_are_simulated_on_request_and_what_a_person_set_stays(tmp_path):
    done = run(
        """
        import os
        import lockstep
        lockstep.strategies.simulate_devices(3)
        strategy = lockstep.strategies.from_env()
        import jax
        print(strategy.describe(), os.environ["NPROC"], os.environ["XLA_FLAGS"].split()[0])
        print(jax.config.jax_compilation_cache_dir)
        """,
        LOCKSTEP_HOME=str(tmp_path),
        XLA_FLAGS="--xla_cpu_enable_fast_math=false",
        JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine"),
    )
    assert done.stdout.splitlines() == [
        "MirroredStrategy over 3 x cpu 6 --xla_cpu_enable_fast_math=false",
        str(tmp_path / "mine"),
    ], done.stderr


@pytest.mark.heavy
def test_compiled_programs_are_kept_in_the_home_folder(tmp_path):
    env = {"LOCKSTEP_HOME": str(tmp_path)}
    code = """
        import os
        del os.environ["JAX_COMPILATION_CACHE_DIR"]
        import lockstep
        lockstep.strategies.OneDeviceStrategy()
        import jax
        print(jax.config.jax_compilation_cache_dir)
        """
    assert run(code, **env).stdout.strip() == str(tmp_path / "cache" / "xla")
