"""Settings of the property tests below this folder."""

import hypothesis

# A shared machine is slow now and then, which is no defect of the tested code.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")
