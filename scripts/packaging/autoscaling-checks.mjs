export async function autoscalingChecks() {}
