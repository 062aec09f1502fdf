"""Settings of the property tests below this folder."""

import hypothesis

# A machine shared with other work is slow now and then; that is no defect of what is tested.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")
