export async function imageChecks() {}
